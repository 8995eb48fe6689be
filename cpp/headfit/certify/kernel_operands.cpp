#include "headfit/certify/kernel_operands.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "headfit/base/checkpoint.hpp"
#include "headfit/base/types.hpp"

namespace headfit {
namespace {

// Products and numbers below this may be flushed to zero, with a factor of two to spare.
constexpr double nearly_subnormal = 0x1p-125;

struct Interval {
  double low, high;
};

Interval around(double x, double y) { return {std::min(x, y), std::max(x, y)}; }

Interval operand(double x, bool is_double, const OperandRounding& how) {
  const auto rounded = [&how](double number) { return how.format.rounded(number); };
  if (!std::isfinite(x)) return {x * how.factor, x * how.factor};
  const double at_once = rounded(x);
  const bool is_twice = is_double && how.in_float32;
  const Interval read =
      around(at_once, is_twice ? rounded(static_cast<double>(static_cast<float>(x))) : at_once);
  if (how.factor == 1) return read;
  Interval scaled = around(rounded(read.low * how.factor), rounded(read.high * how.factor));
  for (const double error : {-how.product_error, how.product_error}) {
    const double factor = how.factor * (1 + error);
    const Interval more = around(rounded(read.low * factor), rounded(read.high * factor));
    scaled = {std::min(scaled.low, more.low), std::max(scaled.high, more.high)};
  }
  const double least = std::min({std::abs(x), std::abs(x * how.factor), std::abs(scaled.low)});
  if (how.in_float32 && least < nearly_subnormal) {
    return {std::min(scaled.low, 0.0), std::max(scaled.high, 0.0)};
  }
  return scaled;
}

}  // namespace

template <class T>
void operand_bounds(std::span<const T> x, const OperandRounding& how, float* low, float* high) {
  constexpr std::size_t few = 1 << 16;
  for (std::size_t first = 0; first < x.size(); first += few) {
    checkpoint();
    for (std::size_t i = first; i < std::min(first + few, x.size()); ++i) {
      const Interval number = operand(x[i], std::is_same_v<T, double>, how);
      low[i] = static_cast<float>(number.low);
      high[i] = static_cast<float>(number.high);
    }
  }
}

template void operand_bounds(std::span<const float>, const OperandRounding&, float*, float*);
template void operand_bounds(std::span<const double>, const OperandRounding&, float*, float*);

}  // namespace headfit
