// Binary floating-point formats that are narrower than double, and the rounding of a double to one
// of their numbers.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
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
    // The exponent of a double by itself is the power of 2 below it, or 0 if it is subnormal.
    constexpr std::uint64_t exponent = 0x7ff0000000000000;
    const double power = std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) & exponent);
    return std::max(power, power_of_two(min_exponent)) * power_of_two(1 - digits);
  }

  // The nearest number of the format, ties to even; infinity beyond the largest. The function is
  // monotone.
  double rounded(double x) const {
    if (!std::isfinite(x)) return x;
    const double unit = spacing(x);
    const double y = std::nearbyint(x / unit) * unit;
    return std::abs(y) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : y;
  }

 private:
  // 2^exponent, which must be a normal number.
  static constexpr double power_of_two(int exponent) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(1023 + exponent) << 52);
  }
};

}  // namespace headfit
