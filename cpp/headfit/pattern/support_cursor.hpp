// The support of a row as its tiles go by from left to right.
#pragma once

#include <algorithm>
#include <limits>

#include "headfit/logits/tile.hpp"
#include "headfit/pattern/target.hpp"

namespace headfit {

// Which rows or columns a stream of tiles shows: every `step`-th one, beginning with `first`.
struct EveryNth {
  Index first = 0;
  Index step = 1;
  Index at(Index shown) const { return first + shown * step; }
};

class SupportCursor {
 public:
  SupportCursor() = default;
  SupportCursor(const Target& target, Index row, const EveryNth& shown = {})
      : next_(target.columns + target.offsets[row]),
        end_(target.columns + target.offsets[row + 1]),
        shown_(shown) {}

  // Overwrites the logits of the support in this tile with -inf, so that only logits off the
  // support are left. Returns whether there were any. The tiles must show all columns of the
  // support, in ascending order.
  template <class T>
  bool hide(T* x, const Tile<T>& tile) {
    const Column* before = next_;
    while (next_ != end_ && *next_ < tile.col + tile.cols) {
      x[*next_++ - tile.col] = -std::numeric_limits<T>::infinity();
    }
    return next_ != before;
  }

  // The same for the entries of a row. Columns of the support that are not among them are left out.
  template <class T>
  bool hide(const Entries<T>& entries) {
    const bool has_any = next_ != end_;
    for (auto from = entries.columns.begin(); next_ != end_; ++next_) {
      from = std::lower_bound(from, entries.columns.end(), *next_);
      if (from == entries.columns.end() || *from != *next_) continue;
      entries.data[from - entries.columns.begin()] = -std::numeric_limits<T>::infinity();
    }
    return has_any;
  }

  // Clears the bits of the support's columns, where bit b stands for column col + b. `col` must
  // ascend from call to call.
  std::uint32_t off_support(std::uint32_t bits, Index col) {
    const Index begin = shown_.at(col);
    const Index end = shown_.at(col + 32);
    if (next_ == end_ || *next_ >= end) return bits;
    while (next_ != end_ && *next_ < begin) ++next_;
    for (const Column* on = next_; on != end_ && *on < end; ++on) {
      const Index beyond = *on - begin;
      if (beyond % shown_.step == 0) bits &= ~(1u << (beyond / shown_.step));
    }
    return bits;
  }

 private:
  const Column* next_ = nullptr;
  const Column* end_ = nullptr;
  EveryNth shown_;
};

}  // namespace headfit
