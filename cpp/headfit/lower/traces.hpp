// Sets on which many points have different traces.
#pragma once

#include <vector>

#include "headfit/base/checkpoint.hpp"
#include "headfit/lower/sparse_table.hpp"
#include "headfit/pattern/target.hpp"

namespace headfit {

// All columns (or rows) of a target as sets of points: column j is the set of rows that attend to
// it, row i the set of columns in its support. The trace of a point on some sets says which of them
// contain it, as bits; a point that the mask keeps from one of these sets has none.
class TraceSearch {
 public:
  // At most `pairs` pairs of sets that share a point are looked at: points in many sets are left
  // out of what sets share. `target` must have valid entries, and outlive this.
  TraceSearch(const Target& target, bool of_columns, Offset pairs);

  // Whether no point was left out, so that what `shattered` does not find does not exist.
  bool is_complete() const { return is_complete_; }

  // So many sets on which every trace occurs (of columns: every one but the constant ones); empty
  // if the search finds none.
  std::vector<Column> shattered(Index size) const;

  // The sets that share a point with a set, itself included.
  std::vector<Column> near(Column set) const;

  // For each of more sets, how many traces on `sets` and this one differ by more than their
  // complement, or differ at all if `free`. Columns have the trace of no set beside those of points.
  std::vector<Index> classes_with(const std::vector<Column>& sets, const std::vector<Column>& more,
                                  bool free) const;

  // One point for each of the traces that are counted so, in ascending order.
  std::vector<Column> points(const std::vector<Column>& sets, bool free) const;

 private:
  // The trace of each point on some sets, -1 for none, and the points of each trace in order.
  struct Cells {
    std::vector<std::int32_t> traces;
    std::vector<std::vector<Column>> points;
    Index sets;
  };

  std::span<const Column> members(Column set) const {
    const auto at = static_cast<std::size_t>(set);
    return {members_.data() + offsets_[at], members_.data() + offsets_[at + 1]};
  }
  // Where the points lie that the mask allows in a set, were it not for its single positions.
  ColumnRange range(Column set) const;
  bool sees(Column set, Column point) const;
  Cells cells(const std::vector<Column>& sets) const;
  void divide(Cells& cells, Column set) const;
  // Which traces occur once a set is added; the last bit is whether it contains the point.
  std::vector<bool> occurring(const Cells& cells, Column set) const;
  Index count_classes(const std::vector<bool>& occurring, bool free) const;
  std::vector<Column> partners(Column set, Index least, Index size) const;
  bool grow(std::vector<Column>& chosen, const Cells& cells, const std::vector<Column>& pool,
            Index size, Checkpoints& checkpoints) const;

  const Target& target_;
  bool of_columns_;
  bool is_complete_ = true;
  std::vector<Offset> offsets_, point_offsets_;  // of the points of each set, sets of each point
  std::vector<Column> members_, holders_;
  // For each set those that share points with it, and how many, but for points in many sets.
  std::vector<Offset> shared_offsets_;
  std::vector<Column> shared_, shared_points_;
};

}  // namespace headfit
