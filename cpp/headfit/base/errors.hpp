// What can go wrong, as types. The bindings translate each of them once.
#pragma once

#include <stdexcept>
#include <string>

namespace headfit {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An argument that can never be right: a shape, a size, a value out of range.
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

// The caller's poll asked to stop. Nothing was left half written.
class Interrupted : public Error {
 public:
  Interrupted() : Error("interrupted") {}
};

}  // namespace headfit
