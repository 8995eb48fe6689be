// Number formats by their names; the empty name stands for none.
#pragma once

#include <optional>
#include <string>

#include "headfit/base/errors.hpp"
#include "headfit/base/number_format.hpp"

namespace headfit::python {

inline std::optional<NumberFormat> format_named(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name == "bfloat16") return NumberFormat::bfloat16();
  if (name == "float16") return NumberFormat::float16();
  if (name == "float32") return NumberFormat::float32();
  throw InputError("a format must be bfloat16, float16 or float32; got '" + name + "'");
}

}  // namespace headfit::python
