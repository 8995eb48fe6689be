// The errors that the core throws, as types. The bindings translate each type to a Python
// exception, in one place.
#pragma once

#include <stdexcept>
#include <string>

namespace headfit {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An argument that is wrong by itself: a shape, a size, or a value out of range.
class InputError : public Error {
 public:
  using Error::Error;
};

// A target matrix that is no valid attention pattern; the message names the row.
class TargetError : public InputError {
 public:
  using InputError::InputError;
};

// NaN or infinity in the input, or in a product of finite inputs.
class NonFiniteError : public InputError {
 public:
  using InputError::InputError;
};

// The caller asked to stop. No result was left half written.
class Interrupted : public Error {
 public:
  Interrupted() : Error("interrupted") {}
};

}  // namespace headfit
