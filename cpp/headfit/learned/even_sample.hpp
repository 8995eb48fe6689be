// Selects which columns are listed if more of them exceed a row's limit than its candidate list
// holds.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "headfit/base/types.hpp"

namespace headfit::learned {

// Takes evenly spaced entries of a sequence whose length is only estimated in advance, so that the
// list ends nearly full. If the list overflows, every second entry is dropped and the stride
// doubles, which keeps the sample even whatever the length is.
class EvenSample {
 public:
  EvenSample() = default;
  // `draw` is a random number that decides where the sample starts.
  EvenSample(Index expected, int cap, std::uint32_t draw)
      : stride_(std::max(unit, expected * unit * 9 / (cap * 8))),
        next_(static_cast<Index>(draw) % stride_) {}

  // The next entries of the sequence: the columns of a vector whose bits are set.
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
  static constexpr Index unit = 256;  // the stride is a fraction, in units of 1 / 256
  Index stride_ = unit;
  Index next_ = 0;  // where in the sequence the next column is taken, in the same units
  Index seen_ = 0;
  int taken_ = 0;
};

}  // namespace headfit::learned
