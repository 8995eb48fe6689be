// The best few of many entries, as they come.
#pragma once

#include <algorithm>
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

// Twice as many as asked for are let in, and now and then the worse half goes: constant time an
// entry, where a heap takes log(most). The rest may come late: entries must have a strict order.
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
    if (!wants(e)) return;
    kept_.push_back(e);
    if (kept_.size() == 2 * most_ + slack) shrink();
  }

  // The best first; nothing can be pushed after this.
  const std::vector<Entry>& sorted() {
    if (kept_.size() > most_) shrink();
    std::sort(kept_.begin(), kept_.end(), Before{});
    return kept_;
  }

 private:
  static constexpr std::size_t slack = 16;

  // A type, not a function: algorithms inline its call.
  struct Before {
    bool operator()(const Entry& a, const Entry& b) const { return a.before(b); }
  };

  void shrink() {
    if (most_ > 0) {
      const auto last = kept_.begin() + static_cast<std::ptrdiff_t>(most_ - 1);
      std::nth_element(kept_.begin(), last, kept_.end(), Before{});
      bar_ = *last;
      full_ = true;
    }
    kept_.resize(most_);
  }

  std::size_t most_ = 0;
  bool full_ = false;
  Entry bar_{};
  std::vector<Entry> kept_;
};

}  // namespace headfit
