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
  // what should be small.
  template <class T>
  void hide(T* x, const Tile<T>& tile) {
    while (next_ != end_ && *next_ < tile.col + tile.cols) {
      x[*next_++ - tile.col] = -std::numeric_limits<T>::infinity();
    }
  }

 private:
  const Column* next_ = nullptr;
  const Column* end_ = nullptr;
};

}  // namespace headfit
