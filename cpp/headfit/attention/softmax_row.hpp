// Sums of exponentials over a row of logits. Rows are padded with -inf to whole
// vectors; sums are kept in double, so that their rounding does not matter.
#pragma once

#include <cmath>
#include <numbers>

#include "headfit/logits/tile.hpp"
#include "headfit/simd/sums.hpp"

namespace headfit {

// A row of whole vectors taken four vectors at a time, so that none waits for the one
// before: part(i, place) for chain i of four.
template <class T, class Part>
EIGEN_ALWAYS_INLINE void in_four_chains(Index padded, const Part& part) {
  constexpr Index lanes = simd::lanes<T>;
  Index c = 0;
  for (; c + 4 * lanes <= padded; c += 4 * lanes) {
    for (Index i = 0; i < 4; ++i) part(i, c + i * lanes);
  }
  for (Index i = 0; i < 3; ++i) {
    if (c + i * lanes < padded) part(i, c + i * lanes);
  }
}

template <class T>
T row_max(const T* x, Index padded) {
  namespace ei = simd::ei;
  const auto lowest = simd::fill<T>(-std::numeric_limits<T>::infinity());
  simd::Packet<T> best[4] = {lowest, lowest, lowest, lowest};
  in_four_chains<T>(padded,
                    [&](Index i, Index c) { best[i] = ei::pmax(best[i], simd::load(x + c)); });
  return ei::predux_max(ei::pmax(ei::pmax(best[0], best[1]), ei::pmax(best[2], best[3])));
}

// The least and the largest logit, where -inf counts for the largest only.
template <class T>
struct LogitRange {
  T least;
  T most;
};
template <class T, bool with_hidden = false>
LogitRange<T> logit_range(const T* x, Index padded) {
  namespace ei = simd::ei;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const auto hidden = simd::fill<T>(-infinity);
  const auto none = simd::fill<T>(infinity);
  simd::Packet<T> least[2] = {none, none};
  simd::Packet<T> most[2] = {hidden, hidden};
  in_four_chains<T>(padded, [&](Index i, Index c) {
    const auto s = simd::load(x + c);
    most[i % 2] = ei::pmax(most[i % 2], s);
    const auto kept = with_hidden ? ei::pselect(ei::pcmp_eq(s, hidden), none, s) : s;
    least[i % 2] = ei::pmin(least[i % 2], kept);
  });
  const T smallest = ei::predux_min(ei::pmin(least[0], least[1]));
  // Few tiles have hidden logits: only they are looked at twice.
  if (!with_hidden && smallest == -infinity) return logit_range<T, true>(x, padded);
  return {smallest, ei::predux_max(ei::pmax(most[0], most[1]))};
}

// A factor 1 / sum in two parts, so that a weight is rounded once and not twice.
template <class T>
struct Inverse {
  T high;
  T low;
  explicit Inverse(double sum)
      : high(static_cast<T>(1 / sum)),
        low(static_cast<T>((1 - static_cast<long double>(high) * sum) / sum)) {}

  simd::Packet<T> times(const simd::Packet<T>& x) const {
    return simd::ei::pmadd(x, simd::fill<T>(high), simd::ei::pmul(x, simd::fill<T>(low)));
  }
};

// exp(x) / exp(shift) of one logit, as the vectors have it.
template <class T>
double exp_of(T x, const simd::RowShift<T>& shift) {
  return static_cast<double>(simd::ei::pfirst(simd::exp_shifted<T>(simd::fill<T>(x), shift)));
}

enum class Exponentials { discard, keep };

// Sum of exp(x - shift); with `keep` the exponentials replace the logits.
template <class T, Exponentials what>
double exp_sum(T* x, Index padded, const simd::RowShift<T>& shift) {
  constexpr Index chunk = PacketSum<T>::vectors * simd::lanes<T>;
  const simd::ShiftedExp<T> shifted_exp(shift);
  LaneSum<T> total;
  PacketSum<T> sum;
  for (Index begin = 0; begin < padded; begin += chunk) {
    T* part = x + begin;
    in_four_chains<T>(std::min(chunk, padded - begin), [&](Index i, Index c) {
      const auto e = shifted_exp(simd::load(part + c));
      if constexpr (what == Exponentials::keep) simd::store(part + c, e);
      sum.add(i, e);
    });
    sum.flush(total);
  }
  return total.value();
}

// The state of a row whose logits arrive tile by tile: the factor left out of
// every exponential, and the sum so far.
template <class T>
struct OnlineSum {
  T max = -std::numeric_limits<T>::infinity();
  simd::RowShift<T> shift;
  double sum = 0;

  bool empty() const { return max == -std::numeric_limits<T>::infinity(); }
  // log of the sum of exp(logit) over all that was seen.
  double log_sum() const { return static_cast<double>(max) + std::log(sum / exp_of(max, shift)); }

  // Moves the shift up to a new maximum; returns the factor for what was summed before.
  double raise(T new_max) {
    if (!(new_max > max)) return 1;
    const simd::RowShift<T> next = simd::RowShift<T>::at(new_max);
    const double factor = empty() ? 0 : factor_between(shift, next);
    max = new_max;
    shift = next;
    sum *= factor;
    return factor;
  }

 private:
  static double factor_between(const simd::RowShift<T>& from, const simd::RowShift<T>& to) {
    // The two shifts may be written differently and nearly cancel: hence the width.
    const long double exponent = static_cast<long double>(from.exponent) - to.exponent;
    const long double subtract = static_cast<long double>(from.subtract) - to.subtract;
    return static_cast<double>(std::exp(subtract + exponent * std::numbers::ln2_v<long double>));
  }
};

}  // namespace headfit
