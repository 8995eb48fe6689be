#include "headfit/certify/operands.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "headfit/base/checkpoint.hpp"
#include "headfit/base/errors.hpp"
#include "headfit/base/standard_arithmetic.hpp"
#include "headfit/certify/rounding.hpp"

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

double frobenius_norm_above(const Heads<double>& x) {
  Vector<double> norms(x.rows);
  HeadRows<double> rows(x);
  Checkpoints checkpoints;
  for (Index i = 0; i < x.rows; ++i) {
    norms[i] = norm_above(rows.row(0, i));
    checkpoints.after(x.cols);
  }
  return norm_above(norms);
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

// Each entry is wrong by at most gamma_D |x| |w| (Higham, 3.1), so a row by gamma_D ||x|| ||W||_F.
// Underflow changes every entry of x and w, and every product and sum, by up to twice the least
// normal number. Rounding to float changes each entry by a share u of its size, or by less than
// the least normal float.
Vector<double> product_errors(const Heads<double>& x, const Heads<double>& w,
                              const Heads<double>& product) {
  if (x.count != 1 || w.count != 1 || product.count != 1 || x.cols != w.rows ||
      product.rows != x.rows || product.cols != w.cols) {
    throw InputError("a product of X and W must have the rows of X and the columns of W");
  }
  if (std::visit([](const auto* stored) { return sizeof(*stored) == 2; }, product.data)) {
    throw InputError("a product of X and W must be stored in float or double");
  }
  const StandardArithmetic arithmetic;
  constexpr double least = std::numeric_limits<double>::min();
  constexpr double epsilon = std::numeric_limits<double>::epsilon();
  const bool is_rounded = !std::holds_alternative<const double*>(product.data);
  const double terms = static_cast<double>(x.cols);
  const double columns = static_cast<double>(w.cols);
  // Counted as twice as many roundings, since threads of the library may round up or down instead
  // of to nearest: by a whole unit in the last place instead of half of one.
  const double relative = gamma_above<double>(2 * (terms + 2));
  const double weights = frobenius_norm_above(w);
  HeadRows<double> inputs(x), outputs(product);
  Vector<double> bounds(x.rows);
  Checkpoints checkpoints;
  for (Index i = 0; i < x.rows; ++i) {
    checkpoints.after(x.cols + w.cols);
    const double norm = norm_above(inputs.row(0, i));
    double bound = product_above(relative, norm, weights) +
                   16 * columns * terms * least * (1 + norm + weights);
    if (is_rounded) {
      // Twice u, since the error is a share of the number before it was rounded to float.
      bound += static_cast<double>(std::numeric_limits<float>::epsilon()) *
                   norm_above(outputs.row(0, i)) +
               2 * columns * static_cast<double>(std::numeric_limits<float>::min());
    }
    bounds[i] = bound * (1 + 8 * epsilon);
  }
  return bounds;
}

}  // namespace headfit
