// The columns of a matching in progress. Each keeps the best of the entries that rows propose to
// it, up to its capacity.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "headfit/base/threads.hpp"

namespace headfit {

struct Proposal {
  double key;
  Column row;  // row numbers fit into 32 bits, as column numbers do
};

// The heavier entry is better; of equal ones, that of the lower row.
inline constexpr auto better = [](const Proposal& a, const Proposal& b) {
  return a.key > b.key || (a.key == b.key && a.row < b.row);
};

class Columns {
 public:
  // With capacity 0 all columns are free: they keep every entry.
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

  // Takes a proposal for which would_take() is true. Returns the entry that the column gives up for
  // it, if any.
  std::optional<Proposal> take(Column col, const Proposal& p) {
    auto& heap = held_[at(col)];  // a heap with the worst entry in front
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

  // Adds an entry beyond the capacity, for a row that would otherwise keep nothing.
  void add(Column col, const Proposal& p) { held_[at(col)].push_back(p); }

 private:
  static std::size_t at(Column col) { return static_cast<std::size_t>(col); }

  std::vector<std::vector<Proposal>> held_;
  std::vector<bool> free_;
  std::size_t capacity_;
};

}  // namespace headfit
