// Binary floating point formats that hold fewer numbers than a double, and rounding to them:
// what is stored, or computed, in them is one of their numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace headfit {

struct NumberFormat {
  int digits;        // of the significand, the leading one included
  int min_exponent;  // of the least normal number, as in 2^min_exponent
  double largest;

  static constexpr NumberFormat bfloat16() { return {8, -126, 0x1.fep127}; }
  static constexpr NumberFormat float32() { return {24, -126, 0x1.fffffep127}; }
  static constexpr NumberFormat float16() { return {11, -14, 65504.0}; }

  // The distance of neighbouring numbers around x: of those at least as large, at a power of 2.
  double spacing(double x) const {
    int exponent = min_exponent;
    if (x != 0) exponent = std::max(std::ilogb(x), min_exponent);
    return std::ldexp(1.0, exponent - digits + 1);
  }

  // The nearest number, ties to even; infinity beyond the largest. Monotone.
  double rounded(double x) const {
    if (!std::isfinite(x)) return x;
    const double unit = spacing(x);
    const double y = std::nearbyint(x / unit) * unit;
    return std::abs(y) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : y;
  }
};

}  // namespace headfit
