// The columns of a matching in progress: each keeps the best entries offered to it.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "headfit/base/threads.hpp"

namespace headfit {

struct Proposal {
  double key;
  Column row;  // rows fit 32 bits as columns do
};

// Heavier first, then the lower row.
inline constexpr auto better = [](const Proposal& a, const Proposal& b) {
  return a.key > b.key || (a.key == b.key && a.row < b.row);
};

class Columns {
 public:
  // capacity 0: free.
  Columns(Index count, Index capacity)
      : held_(static_cast<std::size_t>(count)),
        free_(static_cast<std::size_t>(count), capacity == 0),
        capacity_(static_cast<std::size_t>(capacity)) {}

  void set_free(Column col) { free_[at(col)] = true; }
  bool is_free(Column col) const { return free_[at(col)]; }
  Index count() const { return static_cast<Index>(held_.size()); }
  const std::vector<Proposal>& held(Column col) const { return held_[at(col)]; }

  bool would_take(Column col, const Proposal& p) const {
    const auto& heap = held_[at(col)];
    return free_[at(col)] || heap.size() < capacity_ || better(p, heap.front());
  }

  // Takes a proposal that it would take; what it gives up for it, if anything.
  std::optional<Proposal> take(Column col, const Proposal& p) {
    auto& heap = held_[at(col)];  // the worst in front
    std::optional<Proposal> lost;
    if (!free_[at(col)] && heap.size() == capacity_) {
      lost = heap.front();
      std::pop_heap(heap.begin(), heap.end(), better);
      heap.back() = p;
    } else {
      heap.push_back(p);
    }
    if (!free_[at(col)]) std::push_heap(heap.begin(), heap.end(), better);
    return lost;
  }

  // Above every bound: for an entry that its row must have.
  void add(Column col, const Proposal& p) { held_[at(col)].push_back(p); }

 private:
  static std::size_t at(Column col) { return static_cast<std::size_t>(col); }

  std::vector<std::vector<Proposal>> held_;
  std::vector<bool> free_;
  std::size_t capacity_;
};

}  // namespace headfit
