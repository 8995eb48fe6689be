// The best few of many entries, as they come.
#pragma once

#include <vector>

#include "headfit/base/types.hpp"

namespace headfit {

// A score of a row. Larger scores come first, then lower columns.
template <class T, class Col = Column>
struct Scored {
  T score;
  Col col;

  bool before(const Scored& other) const {
    return score > other.score || (score == other.score && col < other.col);
  }
};

// A heap if they are very few: its bar is up to date. If not, twice as many as asked for are let
// in, and now and then the worse half goes: constant time an entry, where a heap takes log(most).
// No two entries may be equal. For the entries named in best_few.cpp.
template <class Entry>
class BestFew {
 public:
  void clear(Index most) {
    most_ = static_cast<std::size_t>(most);
    full_ = false;
    kept_.clear();
  }

  // Whether there is a bar: what does not come before it is none of the best.
  bool full() const { return full_; }
  const Entry& bar() const { return bar_; }
  bool wants(const Entry& e) const { return !full_ || e.before(bar_); }

  void push(const Entry& e) {
    if (most_ == 0 || !wants(e)) return;
    if (full_ && is_heap()) return replace_worst(e);
    kept_.push_back(e);
    if (kept_.size() == (is_heap() ? most_ : 2 * most_)) set_bar();
  }

  // The best first; nothing can be pushed after this.
  const std::vector<Entry>& sorted();

 private:
  bool is_heap() const { return most_ <= 32; }

  void raise_bar(const Entry& e) {
    bar_ = e;
    full_ = true;
  }

  // e takes the place of the worst, at the front, and sinks to where it belongs.
  void replace_worst(const Entry& e) {
    std::size_t hole = 0;
    for (std::size_t child; (child = 2 * hole + 1) < most_; hole = child) {
      if (child + 1 < most_ && kept_[child].before(kept_[child + 1])) ++child;
      if (!e.before(kept_[child])) break;
      kept_[hole] = kept_[child];
    }
    kept_[hole] = e;
    bar_ = kept_.front();
  }

  // As many entries have come as are kept at most: drops those that are too many, and sets the bar.
  void set_bar();

  std::size_t most_ = 0;
  bool full_ = false;
  Entry bar_{};
  std::vector<Entry> kept_;
};

}  // namespace headfit
