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

namespace headfit {

// The weights of a row in bins by size, eight from a number to its double. Zeros and, unless nearly
// the whole row is asked for, weights too light to count for any share are left out; and only those
// of the bin in which a share is reached are compared with one another.
template <class T>
class KeysForShare {
 public:
  explicit KeysForShare(double largest_share) : rest_(1 - largest_share) {
    bins_.reserve(most_bins);
  }

  // Takes nonnegative weights with this sum, up to rounding, of which the largest is about `most`.
  void start(const T* weights, Index count, double sum, T most) {
    // All weights up to `least` hold less than half of what the largest share leaves, so that the
    // others hold that share whatever the rounding of `sum`. Zeros never count.
    const double mean = sum / static_cast<double>(count);
    const T least = rest_ > 1e-4 ? static_cast<T>(rest_ / 2 * mean) : T(0);
    const auto width = static_cast<std::size_t>(count);
    if (buffer_.size() < 2 * width) buffer_.resize(2 * width);
    sorted_ = buffer_.data() + count;
    std::size_t number = 0;
    for (Index c = 0; c < count; ++c) {
      buffer_[number] = weights[c];
      number += weights[c] > least ? 1 : 0;
    }
    const std::span<const T> kept = std::span(buffer_).first(number);
    highest_ = bits(most) >> dropped_bits;
    // Everything lighter than the last bin is part of it, and so is the whole row if it is short.
    const auto sizes = static_cast<std::size_t>(highest_ - (bits(least) >> dropped_bits)) + 1;
    bins_.assign(count < short_row ? 1 : std::min(sizes, most_bins), {});
    for (const T weight : kept) {
      Bin& bin = bin_of(weight);
      ++bin.end;
      bin.sum += static_cast<double>(weight);
    }
    Index before = 0;
    for (Bin& bin : bins_) before += std::exchange(bin.end, before);
    for (const T weight : kept) sorted_[bin_of(weight).end++] = weight;
  }

  // The fewest weights whose sum reaches `wanted`; all where rounding leaves their sum below it.
  Index reaching(double wanted) {
    Index before = 0;
    for (const Bin& bin : bins_) {
      if (bin.sum >= wanted) {
        return before + fewest_reaching(sorted_ + before, sorted_ + bin.end, wanted);
      }
      wanted -= bin.sum;
      before = bin.end;
    }
    return before;
  }

 private:
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  struct Bin {
    double sum = 0;
    Index end = 0;  // in `sorted_`, which has the heaviest bin first
  };
  // Positive numbers are in the order of their bits: exponent and first bits of the fraction.
  static constexpr int dropped_bits = std::numeric_limits<T>::digits - 1 - 3;
  static constexpr std::size_t most_bins = 256;
  static constexpr Index short_row = 64;

  static Bits bits(T x) { return std::bit_cast<Bits>(x); }
  Bin& bin_of(T weight) {
    const Bits own = bits(weight) >> dropped_bits;
    const auto below = static_cast<std::size_t>(highest_ - std::min(own, highest_));
    return bins_[std::min(below, bins_.size() - 1)];
  }

  // A quickselect: each step halves, on average, the number of weights in question.
  static Index fewest_reaching(T* first, T* last, double wanted) {
    Index taken = 0;
    while (last - first > 1) {
      T* middle = first + (last - first) / 2;
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
  Bits highest_ = 0;
  std::vector<Bin> bins_;
  std::vector<T> buffer_;  // the weights that are kept, and behind them the same by bins
  T* sorted_ = nullptr;
};

}  // namespace headfit
