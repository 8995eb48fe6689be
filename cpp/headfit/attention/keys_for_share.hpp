// How many of the heaviest keys of a row hold a share of its mass.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "headfit/base/types.hpp"
#include "headfit/simd/bits.hpp"
#include "headfit/simd/sums.hpp"

namespace headfit {

// The weights of a row in bins by size, eight from a number to its double: how many there are, and
// their sum. Zeros and, unless nearly the whole row is asked for, weights too light to count for any
// share are left out; and only those of the bin in which a share is reached are compared with one
// another.
template <class T>
class KeysForShare {
 public:
  explicit KeysForShare(double largest_share) : rest_(1 - largest_share) {
    bins_.reserve(2 * most_bins);
  }

  // Takes nonnegative weights, padded to whole vectors, with this sum, up to rounding, of which the
  // largest is about `most`. They must stay where they are.
  void start(const T* weights, Index padded, double sum, T most) {
    weights_ = {weights, static_cast<std::size_t>(padded)};
    if (buffer_.size() < weights_.size()) buffer_.resize(weights_.size());
    // All weights up to `least_` hold less than half of what the largest share leaves, so that the
    // others hold that share whatever the rounding of `sum`. Zeros never count.
    const double mean = sum / static_cast<double>(padded);
    least_ = rest_ > 1e-4 ? static_cast<T>(rest_ / 2 * mean) : T(0);
    highest_ = bits(most) >> dropped_bits;
    // Everything lighter than the last bin is part of it, and so is the whole row if it is short.
    const auto sizes = static_cast<std::size_t>(highest_ - (bits(least_) >> dropped_bits)) + 1;
    count_ = padded < short_row ? 1 : std::min(sizes, most_bins);
    // Neighbours go to different tables, so that one need not wait for the sum of the other.
    bins_.assign(2 * count_, {});
    Bin* table[2] = {bins_.data(), bins_.data() + count_};
    for_packets_above(least_, [&](const T* packet, unsigned above) {
      for (; above != 0; above &= above - 1) {
        count(table[0], packet[std::countr_zero(above)]);
        std::swap(table[0], table[1]);
      }
    });
    for (std::size_t b = 0; b < count_; ++b) {
      bins_[b].sum += bins_[count_ + b].sum;
      bins_[b].number += bins_[count_ + b].number;
    }
    whole_ = sum;
    if constexpr (sizeof(T) == 4) {  // `sum` was partly added in float
      LaneSum<T> exact;
      for (Index c = 0; c < padded; c += lanes) exact.add(simd::load(weights + c));
      whole_ = exact.value();
    }
  }

  // The fewest weights that hold a share of the sum; all where rounding leaves their sum below it.
  Index holding(double share) {
    // Rounding must not ask for one more where a share is reached exactly, as with equal weights.
    constexpr double rounding = 1e-12;
    double wanted = share < 1 ? share * whole_ * (1 - rounding) : whole_;
    Index before = 0;
    for (std::size_t b = 0; b < count_; ++b) {
      if (bins_[b].sum >= wanted) return before + fewest_reaching(weights_of(b), wanted);
      wanted -= bins_[b].sum;
      before += bins_[b].number;
    }
    return before;
  }

 private:
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  struct Bin {
    double sum = 0;
    Index number = 0;
  };
  // Positive numbers are in the order of their bits: exponent and first bits of the fraction.
  static constexpr int dropped_bits = std::numeric_limits<T>::digits - 1 - 3;
  static constexpr std::size_t most_bins = 256;
  static constexpr Index short_row = 64;
  static constexpr Index lanes = simd::lanes<T>;

  static Bits bits(T x) { return std::bit_cast<Bits>(x); }

  void count(Bin* bins, T weight) const {
    const Bits own = bits(weight) >> dropped_bits;
    const auto below = static_cast<std::size_t>(highest_ - std::min(own, highest_));
    Bin& bin = bins[std::min(below, count_ - 1)];
    bin.sum += static_cast<double>(weight);
    ++bin.number;
  }

  // Calls use(packet, which) for every vector in which there are weights above a limit.
  template <class Use>
  void for_packets_above(T limit, const Use& use) const {
    const auto limits = simd::fill<T>(limit);
    for (const T* x = weights_.data(); x < weights_.data() + weights_.size(); x += lanes) {
      if (const unsigned above = simd::bits_above<T>(simd::load(x), limits)) use(x, above);
    }
  }

  // The weights of a bin: above the largest number of the next, and up to the largest of its own.
  std::span<T> weights_of(std::size_t b) {
    const auto largest = [&](Bits bin) {
      return std::bit_cast<T>(((bin + 1) << dropped_bits) - 1);
    };
    const Bits own = highest_ - static_cast<Bits>(b);
    const T limit = b + 1 == count_ ? least_ : largest(own - 1);
    const auto most = simd::fill<T>(b == 0 ? std::numeric_limits<T>::infinity() : largest(own));
    std::size_t number = 0;
    for_packets_above(limit, [&](const T* packet, unsigned above) {
      above &= ~simd::bits_above<T>(simd::load(packet), most);
      for (; above != 0; above &= above - 1) buffer_[number++] = packet[std::countr_zero(above)];
    });
    return std::span(buffer_).first(number);
  }

  // A quickselect: each step halves, on average, the number of weights in question.
  static Index fewest_reaching(std::span<T> weights, double wanted) {
    auto first = weights.begin(), last = weights.end();
    Index taken = 0;
    while (last - first > 1) {
      const auto middle = first + (last - first) / 2;
      std::nth_element(first, middle, last, std::greater<T>());
      const double upper = std::accumulate(first, middle, 0.0);
      if (upper >= wanted) {
        last = middle;
      } else {
        wanted -= upper;
        taken += middle - first;
        first = middle;
      }
    }
    return taken + (first != last && wanted > 0 ? 1 : 0);
  }

  double rest_;
  std::span<const T> weights_;
  T least_ = 0;
  double whole_ = 0;  // of which shares are taken
  Bits highest_ = 0;
  std::size_t count_ = 0;
  std::vector<Bin> bins_;
  std::vector<T> buffer_;  // the weights of one bin
};

}  // namespace headfit
