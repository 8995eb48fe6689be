// The queries or keys that a kernel multiplies, which it makes of those that are stored.
#pragma once

#include <span>

#include "headfit/base/number_format.hpp"

namespace headfit {

// How a kernel rounds its operands: to a format, then times a factor, and to the format again. A
// factor of 1 changes nothing.
struct OperandRounding {
  NumberFormat format;
  double factor = 1;
  // Whether arithmetic may be that of float32: numbers of double may be rounded to it before they
  // are rounded to the format, a product may have a relative error of `product_error`, and
  // subnormal numbers may be flushed to zero.
  bool in_float32 = false;
  double product_error = 0;
};

// Writes the least and the largest number that each x may become. Infinity and NaN stay what they
// are, and numbers beyond the format become infinite.
template <class T>
void operand_bounds(std::span<const T> x, const OperandRounding& how, float* low, float* high);

}  // namespace headfit
