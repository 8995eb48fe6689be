// Sums of exponentials over a row of logits. Rows are padded with -inf to whole
// vectors; sums are kept in double, so that their rounding does not matter.
#pragma once

#include <cmath>

#include "headfit/scores/tile.hpp"

namespace headfit {

template <class T>
T row_max(const T* x, Index padded) {
  auto best = simd::fill<T>(-std::numeric_limits<T>::infinity());
  for (Index c = 0; c < padded; c += simd::lanes<T>) best = simd::ei::pmax(best, simd::load(x + c));
  return simd::ei::predux_max(best);
}

enum class Exponentials { discard, keep };

// A sum of nonnegative terms with the rounding of each addition carried along
// (Neumaier 1974), so that the number of terms does not matter.
class CarefulSum {
 public:
  void add(double x) {
    const double next = sum_ + x;
    carried_ += sum_ >= x ? (sum_ - next) + x : (x - next) + sum_;
    sum_ = next;
  }
  double value() const { return sum_ + carried_; }

 private:
  double sum_ = 0;
  double carried_ = 0;
};

// Sum of exp(x - shift); with `keep` the exponentials replace the logits.
template <class T, Exponentials what>
double exp_sum(T* x, Index padded, const simd::RowShift<T>& shift) {
  namespace ei = simd::ei;
  constexpr Index lanes = simd::lanes<T>;
  constexpr Index chunk = 16 * lanes;  // 4 chains of 4 additions, then the careful sum
  CarefulSum total;
  for (Index begin = 0; begin < padded; begin += chunk) {
    const Index end = std::min(begin + chunk, padded);
    const auto zero = simd::fill<T>(T(0));
    simd::Packet<T> sums[4] = {zero, zero, zero, zero};
    for (Index c = begin; c < end; c += lanes) {
      const auto e = simd::exp_shifted<T>(simd::load(x + c), shift);
      if constexpr (what == Exponentials::keep) simd::store(x + c, e);
      auto& sum = sums[c / lanes % 4];
      sum = ei::padd(sum, e);
    }
    const auto sum = ei::padd(ei::padd(sums[0], sums[1]), ei::padd(sums[2], sums[3]));
    total.add(static_cast<double>(ei::predux(sum)));
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
  double log_sum() const { return shift.log() + std::log(sum); }

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
    const double exponent = static_cast<double>(from.exponent) - static_cast<double>(to.exponent);
    const double subtract = static_cast<double>(from.subtract) - static_cast<double>(to.subtract);
    return std::exp(subtract) * std::exp2(exponent);
  }
};

}  // namespace headfit
