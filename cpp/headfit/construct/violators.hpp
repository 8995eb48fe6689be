// A fold that lists, for each row, the largest logits off the support above a
// threshold: what cutting planes ask of a scan.
#pragma once

#include <algorithm>
#include <vector>

#include "headfit/pattern/support_cursor.hpp"
#include "headfit/rows/row_problem.hpp"
#include "headfit/scores/softmax_row.hpp"
#include "headfit/scores/stream.hpp"

namespace headfit {

// Larger values first, then lower columns: a list does not depend on threads.
inline bool worse_violation(const Violator& a, const Violator& b) {
  return a.value > b.value || (a.value == b.value && a.column < b.column);
}

template <class T>
class ViolatorFold {
 public:
  // thresholds and lists are indexed by the row's place in source.rows.
  ViolatorFold(const Target& target, const LogitSource<T>& source, std::span<const T> thresholds,
               std::size_t limit, std::span<std::vector<Violator>> lists)
      : target_(target), source_(source), thresholds_(thresholds), limit_(limit), lists_(lists) {}

  void begin(const RowBlock& block) {
    cursors_.clear();
    for (Index r = 0; r < block.count; ++r) {
      cursors_.emplace_back(target_, source_.row_at(block.first + r));
      list(block, r).clear();
    }
  }

  void tile(const RowBlock& block, const Tile<T>& tile) {
    const Index padded = tile.padded_cols();
    for (Index r = 0; r < tile.count; ++r) {
      T* x = tile.row(r);
      cursors_[static_cast<std::size_t>(r)].hide(x, tile);
      const T threshold = thresholds_[static_cast<std::size_t>(block.first + r)];
      for (Index begin = 0; begin < padded; begin += simd::lanes<T>) {
        if (!(simd::ei::predux_max(simd::load(x + begin)) > threshold)) continue;
        for (Index c = begin; c < begin + simd::lanes<T>; ++c) {
          if (x[c] > threshold) {
            keep(list(block, r), {static_cast<Column>(tile.col + c), static_cast<double>(x[c])});
          }
        }
      }
    }
  }

  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      std::sort(list(block, r).begin(), list(block, r).end(), worse_violation);
    }
  }

 private:
  std::vector<Violator>& list(const RowBlock& block, Index r) const {
    return lists_[static_cast<std::size_t>(block.first + r)];
  }

  // A heap whose front is the mildest of the worst `limit`.
  void keep(std::vector<Violator>& heap, const Violator& v) const {
    if (heap.size() < limit_) {
      heap.push_back(v);
    } else if (worse_violation(v, heap.front())) {
      std::pop_heap(heap.begin(), heap.end(), worse_violation);
      heap.back() = v;
    } else {
      return;
    }
    std::push_heap(heap.begin(), heap.end(), worse_violation);
  }

  const Target& target_;
  const LogitSource<T>& source_;
  std::span<const T> thresholds_;
  std::size_t limit_;
  std::span<std::vector<Violator>> lists_;
  std::vector<SupportCursor> cursors_;
};

}  // namespace headfit
