// A fold that lists, for each row, the largest logits off the support above a
// threshold: what cutting planes ask of a scan.
#pragma once

#include <bit>
#include <vector>

#include "headfit/base/best_few.hpp"
#include "headfit/logits/stream.hpp"
#include "headfit/pattern/support_cursor.hpp"
#include "headfit/row_qp/row_problem.hpp"

namespace headfit {

template <class T>
class ViolatorFold {
 public:
  // thresholds and lists are indexed by the row's place in source.rows.
  ViolatorFold(const Target& target, const LogitSource<T>& source, std::span<const T> thresholds,
               Index limit, std::span<std::vector<Violator>> lists)
      : target_(target), source_(source), thresholds_(thresholds), limit_(limit), lists_(lists) {}

  void begin(const RowBlock& block) {
    cursors_.clear();
    best_.resize(std::max(best_.size(), static_cast<std::size_t>(block.count)));
    const Index padded = round_up(block.count, Blocking<T>::row_group);
    limits_.assign(static_cast<std::size_t>(padded), std::numeric_limits<T>::infinity());
    for (Index r = 0; r < block.count; ++r) {
      cursors_.emplace_back(target_, source_.row_at(block.first + r));
      limits_[static_cast<std::size_t>(r)] = thresholds_[static_cast<std::size_t>(block.first + r)];
      best_[static_cast<std::size_t>(r)].clear(limit_);
    }
  }

  const T* limits(const RowBlock&) const { return limits_.data(); }

  void hits(const RowBlock&, Index r, Index col, const T* logits, std::uint32_t bits) {
    auto& best = best_[static_cast<std::size_t>(r)];
    bits = cursors_[static_cast<std::size_t>(r)].off_support(bits, col);
    for (; bits; bits &= bits - 1) {
      const int b = std::countr_zero(bits);
      best.push({static_cast<Column>(col + b), static_cast<double>(logits[b])});
    }
    // Of equal violations the lower column stays: what comes later must be larger.
    if (best.full()) limits_[static_cast<std::size_t>(r)] = static_cast<T>(best.bar().value);
  }

  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      lists_[static_cast<std::size_t>(block.first + r)] =
          best_[static_cast<std::size_t>(r)].sorted();
    }
  }

 private:
  const Target& target_;
  const LogitSource<T>& source_;
  std::span<const T> thresholds_;
  Index limit_;
  std::span<std::vector<Violator>> lists_;
  std::vector<SupportCursor> cursors_;
  std::vector<BestFew<Violator>> best_;
  std::vector<T> limits_;
};

}  // namespace headfit
