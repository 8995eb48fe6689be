// Sums of exponentials over a row of logits. Rows are padded with -inf to whole vectors. Sums are
// kept in double, so that their rounding error is negligible.
#pragma once

#include <cmath>
#include <numbers>

#include "headfit/logits/tile.hpp"
#include "headfit/simd/sums.hpp"

namespace headfit {

// The largest logit.
template <class T>
T row_max(const T* x, Index padded);

// The least and the largest logit. Masked logits, -inf, are left out of the least.
template <class T>
struct LogitRange {
  T least;
  T most;
};
template <class T>
LogitRange<T> logit_range(const T* x, Index padded);

// The factor 1 / sum as a sum of two numbers, so that a weight is rounded once and not twice.
template <class T>
struct Inverse {
  T high;
  T low;
  explicit Inverse(double sum)
      : high(static_cast<T>(1 / sum)),
        low(static_cast<T>((1 - static_cast<long double>(high) * sum) / sum)) {}

  simd::Packet<T> times(const simd::Packet<T>& x) const {
    return simd::pmadd(x, simd::fill<T>(high), simd::pmul(x, simd::fill<T>(low)));
  }
};

// exp(x) / exp(shift) of one logit, with the bits that the vector code gives.
template <class T>
double exp_of(T x, const simd::RowShift<T>& shift);

enum class Exponentials { discard, keep };

// The sum of exp(x - shift). With `keep` the exponentials replace the logits.
template <class T, Exponentials what>
double exp_sum(T* x, Index padded, const simd::RowShift<T>& shift);

// The sum of exp(x - shift), and that of exp(x - shift) (max - x), where a masked logit counts 0.
struct EntropySums {
  double exponentials;
  double distances;
};
// Returns both for a row with this maximum, and replaces its logits by exponentials.
template <class T>
EntropySums entropy_sums(T* x, Index padded, const simd::RowShift<T>& shift, T max);

// exp(sink) / exp(shift), in double. A sink is a logit that only the denominator of a row has, -inf
// for none.
template <class T>
double sink_term(double sink, const simd::RowShift<T>& shift);

// Replaces the logits of a row, of which `max` is the largest and finite, by exponentials that leave
// out the factor of their shift. Returns what turns these into weights, beside a sink if `has_sink`.
template <class T>
Inverse<T> to_exponentials(T* x, Index padded, T max, bool has_sink, double sink);

// The sum of exponentials of a row and its sink: its logarithm, and the share that the keys hold.
struct SumWithSink {
  double log_sum;
  double key_mass;

  // For keys with a sum of exp(log_keys). Without a sink: log_keys and 1.
  static SumWithSink of(double log_keys, double sink);
};

// The running sum of a row whose logits arrive tile by tile: the sum so far, and the common factor
// that its exponentials leave out.
template <class T>
struct OnlineSum {
  T max = -std::numeric_limits<T>::infinity();
  simd::RowShift<T> shift;
  double sum = 0;

  bool empty() const { return max == -std::numeric_limits<T>::infinity(); }
  // The logarithm of the sum of exp(logit) over all logits seen so far.
  double log_sum() const;

  // Moves the shift up to a new maximum. Returns the factor by which earlier sums change.
  double raise(T new_max) { return new_max > max ? raised(new_max) : 1; }

  // Adds the term of a sink to the sum of a row that is not empty. Returns the factor by which
  // what was summed before changes.
  double add_sink(double sink);

 private:
  double raised(T new_max);
};

}  // namespace headfit
