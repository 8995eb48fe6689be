// The errors that the core throws, as types. The bindings translate each type to a Python
// exception, in one place.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

namespace headfit {

namespace detail {

// A part of a message: a text, or a number.
struct Part {
  template <std::convertible_to<std::string_view> Text>
  Part(const Text& text) : value(std::string_view(text)) {}
  Part(float number) : value(number) {}
  Part(double number) : value(number) {}
  template <std::integral Int>
  requires(!std::same_as<Int, bool> && !std::same_as<Int, char>) Part(Int number)
      : value(std::conditional_t<std::is_signed_v<Int>, std::int64_t, std::uint64_t>(number)) {}

  std::variant<std::string_view, float, double, std::int64_t, std::uint64_t> value;
};

// Returns texts and numbers as one text. Numbers have just the digits that tell them from their
// neighbours, so that what a user typed is shown as it was typed.
std::string joined(std::initializer_list<Part> parts);

}  // namespace detail

class Error : public std::runtime_error {
 public:
  template <std::convertible_to<detail::Part>... Parts>
  requires(sizeof...(Parts) > 0)
  explicit Error(const Parts&... parts) : std::runtime_error(detail::joined({parts...})) {}
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
