// The divergence of a row of attention M from a row A of the target, and the difference M - A, which
// is the gradient of the divergence by the logits of M. What a sink takes is one more class of both,
// whose logit does not change.
#pragma once

#include "headfit/attention/softmax_row.hpp"
#include "headfit/soft/target_rows.hpp"

namespace headfit::soft {

// Replaces logits by their exponentials, and sums these. Returns the sum of a (max - s), in which
// terms with a = 0 are left out, since their logit may be -inf. Vectors of a tile's width are summed
// in T, and their sums in double.
template <class T>
double to_exponentials(const T* a, T* x, Index cols, T max, const simd::RowShift<T>& shift,
                       double& sum) {
  const auto top = simd::fill<T>(max);
  const auto limit = simd::fill<T>(max - negligible<T>);
  const auto zero = simd::fill<T>(T(0));
  double below = 0;
  for (Index begin = 0; begin < cols; begin += Blocking<T>::tile_cols) {
    auto e_sum = zero, a_sum = zero;
    const Index end = std::min(begin + Blocking<T>::tile_cols, cols);
    for (Index c = begin; c < end; c += simd::lanes<T>) {
      const auto s = simd::load(x + c);
      const auto weight = simd::load(a + c);
      const auto e = exp_above<T>(s, limit, shift);
      simd::store(x + c, e);
      e_sum = simd::padd(e_sum, e);
      const auto term = simd::pmul(weight, simd::psub(top, s));
      a_sum = simd::padd(a_sum, simd::pselect(simd::pcmp_lt(zero, weight), term, zero));
    }
    sum += static_cast<double>(simd::predux(e_sum));
    below += static_cast<double>(simd::predux(a_sum));
  }
  return below;
}

// The sink of a row: its logit in M, and the logarithm of its share of A. Both are -inf without one.
struct RowSink {
  static constexpr double none = -std::numeric_limits<double>::infinity();
  double logit = none, log_share = none;

  // KL(A || M) without the sum of A (max - s) over the keys. `log_sum` is that of all exponentials
  // of M, that of the sink included.
  double rest_of_divergence(double entropy, double log_sum, double max) const {
    const double share = std::exp(log_share), mass = -std::expm1(log_share);
    const double of_keys = mass > 0 ? mass * (log_sum - max + std::log(mass) - entropy) : 0.0;
    return of_keys + (share > 0 ? share * (log_share - logit + log_sum) : 0.0);
  }
};

// Turns a row of logits x into M, and the row a of the target into M - A. The entropy is that of A
// over the keys, divided by their sum. Both rows are padded to whole vectors, x with -inf and a with
// zeros. Returns KL(A || M); a row without an allowed column becomes zeros and has divergence 0.
template <class T>
double to_difference(T* x, T* a, Index cols, double entropy, const RowSink& sink = {}) {
  const T max = row_max(x, cols);
  if (max == -std::numeric_limits<T>::infinity()) {
    std::fill(x, x + cols, T(0));
    std::fill(a, a + cols, T(0));
    return 0;
  }
  const auto shift = simd::RowShift<T>::at(max);
  double sum = 0;
  const double below = to_exponentials(a, x, cols, max, shift, sum);
  // The divergence is the sum of A (log A - log M), with log M = s - max - log(sum / e_max).
  const double above = std::log(sum / exp_of(max, shift));
  double divergence = below + above - entropy;
  if (sink.logit != RowSink::none) {
    const auto whole = SumWithSink::of(static_cast<double>(max) + above, sink.logit);
    divergence = below + sink.rest_of_divergence(entropy, whole.log_sum, static_cast<double>(max));
    sum = std::min(sum / whole.key_mass, std::numeric_limits<double>::max());
  }
  const Inverse<T> inverse(sum);
  for (Index c = 0; c < cols; c += simd::lanes<T>) {
    const auto m = inverse.times(simd::load(x + c));
    simd::store(x + c, m);
    simd::store(a + c, simd::psub(m, simd::load(a + c)));
  }
  return divergence;
}

}  // namespace headfit::soft
