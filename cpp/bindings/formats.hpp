// Number formats, and forms of indexes, by name.
#pragma once

#include <optional>
#include <string>

#include "headfit/attention/index_form.hpp"
#include "headfit/base/errors.hpp"
#include "headfit/base/number_format.hpp"

namespace headfit::python {

inline NumberFormat format_named(const std::string& name) {
  if (name == "bfloat16") return NumberFormat::bfloat16();
  if (name == "float16") return NumberFormat::float16();
  if (name == "float32") return NumberFormat::float32();
  if (name == "float8_e4m3fn") return NumberFormat::float8_e4m3fn();
  if (name == "float8_e5m2") return NumberFormat::float8_e5m2();
  throw InputError("no number format is named '", name, "'");
}
inline std::optional<NumberFormat> format_named(const std::optional<std::string>& name) {
  return name ? std::optional(format_named(*name)) : std::nullopt;
}

inline IndexForm form_named(const std::string& name) {
  return name == "sum" ? IndexForm::sum : IndexForm::dot;
}

}  // namespace headfit::python
