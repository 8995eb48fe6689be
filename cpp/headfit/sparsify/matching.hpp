// A greedy b-matching by weight that does not sort all entries, by deferred acceptance (Gale and
// Shapley 1962): rows propose their entries to columns, the heaviest first, and a full column gives
// up its lightest entry for a heavier one. Rows and columns rank entries by the same order.
// Therefore the outcome is unique: it is the greedy matching, whatever the order of proposals. So
// rows that have run out of listed entries can be read again many at a time.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "headfit/attention/best_of_row.hpp"
#include "headfit/sparsify/sparsify.hpp"

namespace headfit {

struct Proposal {
  double key;
  Column row;  // row numbers fit into 32 bits, as column numbers do
};

// The heavier entry is better; of equal ones, that of the lower row.
inline constexpr auto better = [](const Proposal& a, const Proposal& b) {
  return a.key > b.key || (a.key == b.key && a.row < b.row);
};

// The columns of a matching in progress. Each keeps the best of the entries that rows propose to
// it, up to its capacity.
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

// The entries of a row that were read last, best first.
struct RowList : BestEntries {
  std::size_t next = 0;  // the first entry that was not proposed yet
  double norm = 0;  // turns the scores of the row into keys
  Index held = 0;
  double mass = 0;  // the share of the row that it holds
};

// Reads an attention matrix row by row.
class RowReader {
 public:
  virtual ~RowReader() = default;
  virtual Index rows() const = 0;
  virtual Index cols() const = 0;
  // Replaces the lists of some rows by their next best entries, at most `limit` for each row.
  // Entries that `columns` would refuse now are left out, since a column that refuses an entry
  // would also refuse it later.
  virtual void read(std::span<const Index> rows, Index limit, const Columns& columns,
                    std::vector<RowList>& lists, const Run& run) const = 0;
  // The share of its row that belongs to an entry with this key.
  virtual double share(double key) const = 0;
};

// Weights are shares as the reader has them, and what was dropped is not counted.
SparseRows match(const RowReader& reader, const SparsifyOptions& options, const Run& run);

}  // namespace headfit
