// Binary floating-point formats that are narrower than double, and the rounding of a double to one
// of their numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace headfit {

struct NumberFormat {
  int digits;        // of the significand, including the leading one
  int min_exponent;  // the smallest normal number is 2^min_exponent
  double largest;

  static constexpr NumberFormat bfloat16() { return {8, -126, 0x1.fep127}; }
  static constexpr NumberFormat float32() { return {24, -126, 0x1.fffffep127}; }
  static constexpr NumberFormat float16() { return {11, -14, 65504.0}; }
  // The formats of 8 bits as PyTorch and ml_dtypes name them. e4m3fn has no infinity.
  static constexpr NumberFormat float8_e4m3fn() { return {4, -6, 448.0}; }
  static constexpr NumberFormat float8_e5m2() { return {3, -14, 57344.0}; }

  // The distance between neighbouring numbers of the format around x. At a power of 2, where it
  // differs on both sides, the distance to the next larger number.
  double spacing(double x) const {
    int exponent = min_exponent;
    if (x != 0) exponent = std::max(std::ilogb(x), min_exponent);
    return std::ldexp(1.0, exponent - digits + 1);
  }

  // The nearest number of the format, ties to even; infinity beyond the largest. The function is
  // monotone.
  double rounded(double x) const {
    if (!std::isfinite(x)) return x;
    const double unit = spacing(x);
    const double y = std::nearbyint(x / unit) * unit;
    return std::abs(y) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : y;
  }
};

}  // namespace headfit
