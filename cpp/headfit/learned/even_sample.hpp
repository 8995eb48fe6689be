// Which of the many columns over a row's limit are listed.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "headfit/base/types.hpp"

namespace headfit::learned {

// An even sample of a sequence whose length is only guessed: the list should end nearly full.
// When it overflows, every second entry goes and the stride doubles, so that the sample is
// even whatever the length.
class EvenSample {
 public:
  EvenSample() = default;
  // `draw` is a random number: where the sample starts.
  EvenSample(Index expected, int cap, std::uint32_t draw)
      : stride_(std::max(unit, expected * unit * 9 / (cap * 8))),
        next_(static_cast<Index>(draw) % stride_) {}

  // The columns of a vector whose bits are set come next in the sequence.
  void take(std::uint32_t bits, Index column, int cap, Column* list) {
    const Index end = seen_ + std::popcount(bits);
    for (; next_ < end * unit; next_ += stride_) {
      if (taken_ == cap) {
        for (int t = 0; 2 * t < cap; ++t) list[t] = list[2 * t];
        taken_ = cap / 2;
        stride_ *= 2;
      }
      std::uint32_t rest = bits;
      for (Index skip = next_ / unit - seen_; skip > 0; --skip) rest &= rest - 1;
      list[taken_++] = static_cast<Column>(column + std::countr_zero(rest));
    }
    seen_ = end;
  }
  Index seen() const { return seen_; }
  Index taken() const { return taken_; }

 private:
  static constexpr Index unit = 256;  // strides are fractions
  Index stride_ = unit;
  Index next_ = 0;  // place in the sequence, in units, of the next column to take
  Index seen_ = 0;
  int taken_ = 0;
};

}  // namespace headfit::learned
