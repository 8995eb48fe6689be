// The exponentials of a row of logits and their sum; the divergence of the row's attention M from a
// row A of a target, and the difference M - A, which is the gradient of the divergence by the logits
// of M. What a sink takes is one more class of both, whose logit does not change.
#pragma once

#include <type_traits>

#include "headfit/attention/softmax_row.hpp"

namespace headfit::descent {

// Logits this far below the maximum of their row get weight zero. Their weights would be so small
// that they, or products with them, are subnormal numbers, with which arithmetic is slow.
template <class T>
inline constexpr T negligible = sizeof(T) == 4 ? T(69) : T(560);

// exp(s) / exp(shift), or 0 below a limit.
template <class T>
simd::Packet<T> exp_above(const simd::Packet<T>& s, const simd::Packet<T>& limit,
                          const simd::RowShift<T>& shift) {
  const auto e = simd::exp_shifted<T>(simd::pmax(s, limit), shift);
  return simd::pselect(simd::pcmp_lt(s, limit), simd::fill<T>(T(0)), e);
}

struct NoTerm {};

// The sums over a row of its exponentials, and of a term of the caller's.
struct ExponentialSums {
  double exponentials = 0, terms = 0;
};

// Replaces the logits of a row by their exponentials, and sums these. term(c, s) may give one more
// term for each vector s of logits, those of column c and after. Vectors of a tile's width are summed
// in T, and their sums in double.
template <class T, class Term = NoTerm>
ExponentialSums to_exponentials(T* x, Index cols, T max, const simd::RowShift<T>& shift,
                                const Term& term = {}) {
  constexpr bool has_term = !std::is_same_v<Term, NoTerm>;
  const auto limit = simd::fill<T>(max - negligible<T>);
  const auto zero = simd::fill<T>(T(0));
  ExponentialSums sums;
  for (Index begin = 0; begin < cols; begin += Blocking<T>::tile_cols) {
    auto exponentials = zero, terms = zero;
    const Index end = std::min(begin + Blocking<T>::tile_cols, cols);
    for (Index c = begin; c < end; c += simd::lanes<T>) {
      const auto s = simd::load(x + c);
      const auto e = exp_above<T>(s, limit, shift);
      simd::store(x + c, e);
      exponentials = simd::padd(exponentials, e);
      if constexpr (has_term) terms = simd::padd(terms, term(c, s));
    }
    sums.exponentials += static_cast<double>(simd::predux(exponentials));
    if constexpr (has_term) sums.terms += static_cast<double>(simd::predux(terms));
  }
  return sums;
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
  const auto top = simd::fill<T>(max), zero = simd::fill<T>(T(0));
  // The sum of a (max - s). Terms with a = 0 are left out, since their logit may be -inf.
  auto [sum, below] = to_exponentials(x, cols, max, shift, [&](Index c, const auto& s) {
    const auto weight = simd::load(a + c);
    const auto term = simd::pmul(weight, simd::psub(top, s));
    return simd::pselect(simd::pcmp_lt(zero, weight), term, zero);
  });
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

}  // namespace headfit::descent
