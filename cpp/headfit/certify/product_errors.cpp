#include "headfit/certify/product_errors.hpp"

#include "headfit/base/checkpoint.hpp"
#include "headfit/base/errors.hpp"
#include "headfit/base/standard_arithmetic.hpp"
#include "headfit/certify/rounding.hpp"

namespace headfit {
namespace {

double frobenius_norm_above(const Heads<double>& x) {
  Vector<double> norms(x.rows);
  HeadRows<double> rows(x);
  Checkpoints pace;
  for (Index i = 0; i < x.rows; ++i) {
    norms[i] = norm_above(rows.row(0, i));
    pace.after(x.cols);
  }
  return norm_above(norms);
}

}  // namespace

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
  Checkpoints pace;
  for (Index i = 0; i < x.rows; ++i) {
    pace.after(x.cols + w.cols);
    const double size = norm_above(inputs.row(0, i));
    double bound = product_above(relative, size, weights) +
                   16 * columns * terms * least * (1 + size + weights);
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
