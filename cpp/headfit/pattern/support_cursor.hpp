// The support of a row as its tiles go by from left to right.
#pragma once

#include <limits>

#include "headfit/pattern/target.hpp"
#include "headfit/scores/tile.hpp"

namespace headfit {

class SupportCursor {
 public:
  SupportCursor() = default;
  SupportCursor(const Target& target, Index row)
      : next_(target.columns + target.offsets[row]), end_(target.columns + target.offsets[row + 1]) {}

  // Overwrites the support's logits in this tile with -inf, so that what is left is
  // what should be small. True if there were any.
  template <class T>
  bool hide(T* x, const Tile<T>& tile) {
    const Column* before = next_;
    while (next_ != end_ && *next_ < tile.col + tile.cols) {
      x[*next_++ - tile.col] = -std::numeric_limits<T>::infinity();
    }
    return next_ != before;
  }

  // Clears the bits of the support's columns, where bit b stands for column col + b: calls
  // with ascending columns.
  std::uint32_t off_support(std::uint32_t bits, Index col) {
    if (next_ == end_ || *next_ >= col + 32) return bits;
    while (next_ != end_ && *next_ < col) ++next_;
    for (const Column* on = next_; on != end_ && *on < col + 32; ++on) bits &= ~(1u << (*on - col));
    return bits;
  }

 private:
  const Column* next_ = nullptr;
  const Column* end_ = nullptr;
};

}  // namespace headfit
