#include <algorithm>

#include "headfit/row_qp/dual_active_set.hpp"

namespace headfit {

namespace {
// A rate smaller than this, relative to the largest rate, is rounding noise and never blocks a
// step.
constexpr double rate_noise = 1e-13;
}  // namespace

// The ratio test: how long the step can be until the first multiplier of an inequality reaches
// zero. Of several that reach it at once, the one with the largest rate is dropped, which is the
// best conditioned choice.
DualActiveSet::Block DualActiveSet::ratio_test() {
  const int columns = set_.factor.size();
  const double largest = rate_.head(columns).lpNorm<Eigen::Infinity>();
  const double noise = rate_noise * std::max(1.0, largest);
  // Divides even where the result is not used: a branch would often be mispredicted, and without
  // one the loop is vectorized.
  const double* sense = set_.sense().data();
  const double* u = set_.u.data();
  const double* rates = rate_.data();
  double* lengths = length_.data();
  for (int i = 0; i < columns; ++i) {
    const double rate = sense[i] * rates[i];
    const double length = std::max(0.0, sense[i] * u[i]) / -rate;
    lengths[i] = rate < -noise ? length : ConstraintPool::infinite;
  }
  Block block;
  double fastest = 0.0;
  const auto test = [&](int r, double rate, double length) {
    if (length > block.length || (length == block.length && rate >= fastest)) return;
    block = {r, length};
    fastest = rate;
  };
  for (int g = 0; g < ConstraintPool::groups; ++g) {
    const int r = set_.base(g);
    if (r < 0 || pool_.equality(r)) continue;
    const double rate = pool_.sign(r) * base_rate_[g];
    if (rate < -noise) test(r, rate, std::max(0.0, pool_.sign(r) * set_.base_u[g]) / -rate);
  }
  const double least = columns == 0 ? ConstraintPool::infinite : length_.head(columns).minCoeff();
  for (int i = 0; i < columns && least < ConstraintPool::infinite; ++i) {
    if (lengths[i] == least) test(set_.columns()[i], sense[i] * rates[i], least);
  }
  return block;
}

}  // namespace headfit
