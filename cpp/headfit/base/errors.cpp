#include "headfit/base/errors.hpp"

#include <charconv>

namespace headfit::detail {

std::string joined(std::initializer_list<Part> parts) {
  std::string text;
  const auto append = [&](auto value) {
    if constexpr (std::is_arithmetic_v<decltype(value)>) {
      char digits[32];
      text.append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
    } else {
      text.append(value);
    }
  };
  for (const Part& part : parts) std::visit(append, part.value);
  return text;
}

}  // namespace headfit::detail
