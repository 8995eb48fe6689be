// The errors that the core throws, as types. The bindings translate each type to a Python
// exception, in one place.
#pragma once

#include <charconv>
#include <stdexcept>
#include <string>

namespace headfit {

// Returns a number as messages show it: with just the digits that tell it from its neighbours, so
// that what a user typed is shown as it was typed.
inline std::string as_typed(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof(digits), value).ptr};
}

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
