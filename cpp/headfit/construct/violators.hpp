// A fold that lists, for each row, the largest logits off the support above a
// threshold: what cutting planes ask of a scan.
#pragma once

#include <algorithm>
#include <bit>
#include <vector>

#include "headfit/pattern/support_cursor.hpp"
#include "headfit/rows/row_problem.hpp"
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
    const Index padded = round_up(block.count, Blocking<T>::row_group);
    limits_.assign(static_cast<std::size_t>(padded), std::numeric_limits<T>::infinity());
    for (Index r = 0; r < block.count; ++r) {
      cursors_.emplace_back(target_, source_.row_at(block.first + r));
      limits_[static_cast<std::size_t>(r)] = thresholds_[static_cast<std::size_t>(block.first + r)];
      list(block, r).clear();
    }
  }

  const T* limits(const RowBlock&) const { return limits_.data(); }

  void hits(const RowBlock& block, Index r, Index col, const T* logits, std::uint32_t bits) {
    auto& heap = list(block, r);
    bits = cursors_[static_cast<std::size_t>(r)].off_support(bits, col);
    for (; bits; bits &= bits - 1) {
      const int b = std::countr_zero(bits);
      keep(heap, {static_cast<Column>(col + b), static_cast<double>(logits[b])});
    }
    // Of equal violations the lower column stays: what comes later must be larger.
    if (limit_ > 0 && heap.size() == limit_) {
      limits_[static_cast<std::size_t>(r)] = static_cast<T>(heap.front().value);
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
  std::vector<T> limits_;
};

}  // namespace headfit
