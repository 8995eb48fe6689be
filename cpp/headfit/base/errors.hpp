// The errors that the core throws, as types. The bindings translate each type to a Python
// exception, in one place.
#pragma once

#include <charconv>
#include <concepts>
#include <stdexcept>
#include <string>
#include <string_view>

namespace headfit {

namespace detail {

template <class T>
concept Number = std::same_as<T, float> || std::same_as<T, double> ||
                 (std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char>);

// Returns a number as messages show it: with just the digits that tell it from its neighbours, so
// that what a user typed is shown as it was typed.
inline std::string as_text(Number auto value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof(digits), value).ptr};
}

inline std::string_view as_text(std::string_view text) { return text; }

// What messages are made of: texts and numbers.
template <class T>
concept Part = requires(const T& part) { as_text(part); };

// Returns texts and numbers as one text.
template <Part... Parts>
std::string joined(const Parts&... parts) {
  std::string text;
  (text.append(as_text(parts)), ...);
  return text;
}

}  // namespace detail

class Error : public std::runtime_error {
 public:
  template <detail::Part First, detail::Part... Parts>
  explicit Error(First first, Parts... parts)
      : std::runtime_error(detail::joined(first, parts...)) {}
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
