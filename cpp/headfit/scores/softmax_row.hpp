// Sums of exponentials over a row of logits. Rows are padded with -inf to whole
// vectors; sums are kept in double, so that their rounding does not matter.
#pragma once

#include <cmath>
#include <numbers>

#include "headfit/scores/tile.hpp"

namespace headfit {

template <class T>
T row_max(const T* x, Index padded) {
  auto best = simd::fill<T>(-std::numeric_limits<T>::infinity());
  for (Index c = 0; c < padded; c += simd::lanes<T>) best = simd::ei::pmax(best, simd::load(x + c));
  return simd::ei::predux_max(best);
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

// A few vectors of terms on their way to a careful sum. float: pairs of terms, then
// double. double: every rounding is carried along (Knuth's two-sum).
template <class T>
class PacketSum {
 public:
  void add(Index place, const simd::Packet<T>& term) {
    auto& sum = sums_[place % 4];
    const auto next = simd::ei::padd(sum, term);
    if constexpr (sizeof(T) == 8) {
      namespace ei = simd::ei;
      const auto part = ei::psub(next, sum);
      const auto lost = ei::padd(ei::psub(sum, ei::psub(next, part)), ei::psub(term, part));
      carried_ = ei::padd(carried_, lost);
    }
    sum = next;
  }

  void flush(CarefulSum& total) {
    if constexpr (sizeof(T) == 8) {
      for (const auto& sum : sums_) spill(sum, total);
      spill(carried_, total);
    } else {
      namespace ei = simd::ei;
      spill(ei::padd(ei::padd(sums_[0], sums_[1]), ei::padd(sums_[2], sums_[3])), total);
    }
    for (auto& sum : sums_) sum = simd::fill<T>(T(0));
    carried_ = simd::fill<T>(T(0));
  }

  // Terms between two flushes.
  static constexpr Index vectors = sizeof(T) == 8 ? 64 : 8;

 private:
  static void spill(const simd::Packet<T>& x, CarefulSum& total) {
    alignas(64) T parts[simd::lanes<T>];
    simd::store(parts, x);
    for (const T part : parts) total.add(static_cast<double>(part));
  }

  simd::Packet<T> zero_ = simd::fill<T>(T(0));
  simd::Packet<T> sums_[4] = {zero_, zero_, zero_, zero_};
  simd::Packet<T> carried_ = zero_;
};

// Sum of exp(x - shift); with `keep` the exponentials replace the logits.
template <class T, Exponentials what>
double exp_sum(T* x, Index padded, const simd::RowShift<T>& shift) {
  constexpr Index lanes = simd::lanes<T>;
  constexpr Index chunk = PacketSum<T>::vectors * lanes;
  CarefulSum total;
  PacketSum<T> sum;
  for (Index begin = 0; begin < padded; begin += chunk) {
    const Index end = std::min(begin + chunk, padded);
    for (Index c = begin; c < end; c += lanes) {
      const auto e = simd::exp_shifted<T>(simd::load(x + c), shift);
      if constexpr (what == Exponentials::keep) simd::store(x + c, e);
      sum.add(c / lanes, e);
    }
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
