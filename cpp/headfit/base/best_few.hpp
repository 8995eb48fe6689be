// Keeps the best few of many items that arrive one after the other.
#pragma once

#include <vector>

#include "headfit/base/types.hpp"

namespace headfit {

// The score of a column. Larger scores come first; of equal scores, the lower column.
template <class T, class Col = Column>
struct Scored {
  T score;
  Col col;

  bool before(const Scored& other) const {
    return score > other.score || (score == other.score && col < other.col);
  }
};

// Up to 32 items are kept in a heap, whose worst item is always known. More than that are kept
// in a list that grows to twice the number asked for, and then drops its worse half: this takes
// constant time per item, where a heap would take log(most). No two items may be equal. The
// class is compiled for the item types named at the end of best_few.cpp.
template <class Item>
class BestFew {
 public:
  void clear(Index most) {
    most_ = static_cast<std::size_t>(most);
    full_ = false;
    kept_.clear();
    if (is_heap()) kept_.reserve(most_);
  }

  // Whether bar() is known: items that do not come before it are not among the best few.
  bool full() const { return full_; }
  const Item& bar() const { return bar_; }
  bool wants(const Item& e) const { return !full_ || e.before(bar_); }

  void push(const Item& e) {
    if (most_ == 0 || !wants(e)) return;
    if (full_ && is_heap()) return replace_worst(e);
    kept_.push_back(e);
    if (kept_.size() == (is_heap() ? most_ : 2 * most_)) set_bar();
  }

  // The items kept, best first. Nothing may be pushed after this.
  const std::vector<Item>& sorted();

 private:
  bool is_heap() const { return most_ <= 32; }

  void raise_bar(const Item& e) {
    bar_ = e;
    full_ = true;
  }

  // Puts e in the place of the worst item, at the front of the heap, and restores the heap order.
  void replace_worst(const Item& e) {
    std::size_t hole = 0;
    for (std::size_t child; (child = 2 * hole + 1) < most_; hole = child) {
      if (child + 1 < most_ && kept_[child].before(kept_[child + 1])) ++child;
      if (!e.before(kept_[child])) break;
      kept_[hole] = kept_[child];
    }
    kept_[hole] = e;
    bar_ = kept_.front();
  }

  // Called when the storage is full: drops all but the best items, and sets the bar.
  void set_bar();

  std::size_t most_ = 0;
  bool full_ = false;
  Item bar_{};
  std::vector<Item> kept_;
};

}  // namespace headfit
