// Which keys of a row are surely selected by their scores, and which may be.
//
// Every score s_j of a free key is known to lie in an interval [l_j, u_j], wherever a kernel rounds.
// The kernel selects a set B of b free keys such that no key outside of B has a larger score than one
// in it: that is all that rules for ties have in common. Then, for a row with more than b free keys:
//
// - If fewer than b other free keys i have u_i >= l_j, key j is in every such B. For were it outside,
//   each of the b keys i in B would have u_i >= s_i >= s_j >= l_j, and none of them is j.
//   Key j itself has u_j >= l_j. So the condition says that at most b free keys, j among them, have
//   u_i >= l_j: the (b + 1)-th largest upper end is less than l_j.
// - If at least b free keys i have l_i > u_j, key j is in no such B. They are others than j, since
//   l_j <= u_j, and s_i >= l_i > u_j >= s_j. Were j in B, at most b - 1 of them would be there too,
//   and one outside would have a larger score than j. The condition says that the b-th largest
//   lower end exceeds u_j.
//
// So two order statistics of each row decide, and neither equal scores nor equal keys need care: their
// intervals overlap. With at most b free keys all are selected.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "headfit/base/types.hpp"
#include "headfit/certify/rounding.hpp"
#include "headfit/certify/selection.hpp"

namespace headfit::detail {

enum class Choice : std::int8_t { hidden, sure, possible, out };

// How many keys of a row there are of some choices.
struct ChoiceCounts {
  Index sure = 0;  // those that are kept always included
  Index selected = 0;  // that any selection has
  bool may_overflow = false;  // whether a score may, so that nothing is known of a selection
  Index open() const { return selected - sure; }  // that are selected among the possible ones
};

// What a score that is computed in double may differ from that of a kernel in float32: by at most
// per_norm * ||k|| + constant for a key k. See `score_error`.
struct ScoreError {
  double per_norm;
  double constant;

  Enclosure of(double score, double k_norm) const {
    const double radius = per_norm * k_norm + constant;
    return {score - radius, score + radius};
  }
};

// The bound of the kernel, as `float32_kernels_radius` states it for the scale 1: d + 9 roundings, where
// a kernel that multiplies the scales of stored numbers into the score has d + 2 at most. To it comes
// the bound of the product in double, and what is lost where the ends of an interval are computed:
// half a unit in the last place of the score, which is at most (1 + gamma) ||q|| ||k||, and of the
// radius. The factors in front are larger than all roundings of this formula. Infinite where a
// kernel may overflow.
inline ScoreError score_error(Index depth, double q_norm, double k_norm_max) {
  if (!(float32_kernels_radius(1, depth, q_norm, k_norm_max) < no_bound)) return {0, no_bound};
  constexpr double epsilon = std::numeric_limits<double>::epsilon();
  constexpr double least = static_cast<double>(std::numeric_limits<float>::min());
  const double d = static_cast<double>(depth);
  const DotBound own = DotBound::of<double>(depth, depth + 2);
  const double relative = gamma_above<float>(d + 9) + own.relative + 8 * epsilon;
  const double absolute = 32 * d * least * (1 + q_norm + k_norm_max);  // own.absolute is far less
  return {relative * q_norm * (1 + 16 * epsilon),
          (absolute + own.absolute * (1 + k_norm_max)) * (1 + 16 * epsilon)};
}

// Each thread has an object of its own.
class SelectedKeys {
 public:
  explicit SelectedKeys(const SelectionOptions& options) : options_(options) {}

  // Chooses among the keys of a row at a position. x[c] is the score of the key at place(c), rising,
  // -inf where it is masked; ends(c) encloses what a kernel computes, infinite where that may overflow.
  template <class Place, class Ends>
  ChoiceCounts choose(const double* x, Index count, Index position, const Place& place,
                      const Ends& ends, Choice* to) {
    ChoiceCounts counts;
    at_.clear(), lower_.clear(), upper_.clear();
    Index seen = 0;
    for (Index c = 0; c < count; ++c) {
      if (x[c] == -no_bound) {
        to[c] = Choice::hidden;
        continue;
      }
      const Index back = position - place(c);
      if (seen++ < options_.first || (back >= 0 && back < options_.window)) {
        to[c] = Choice::sure;
        ++counts.sure;
        continue;
      }
      const Enclosure score = ends(c);
      at_.push_back(c);
      counts.may_overflow |= !(score.hi < no_bound);
      lower_.push_back(score.lo);
      upper_.push_back(score.hi);
    }
    choose_free(to, counts);
    return counts;
  }

 private:
  void choose_free(Choice* to, ChoiceCounts& counts) {
    const auto free = static_cast<Index>(at_.size()), budget = options_.budget();
    counts.selected = counts.sure + std::min(free, budget);
    if (free <= budget) {
      for (const Index c : at_) to[c] = Choice::sure;
      counts.sure += free;
      return;
    }
    const double next_upper = largest(upper_, budget), last_lower = largest(lower_, budget - 1);
    for (std::size_t f = 0; f < at_.size(); ++f) {
      const bool is_sure = lower_[f] > next_upper, may_be = upper_[f] >= last_lower;
      to[at_[f]] = is_sure ? Choice::sure : may_be ? Choice::possible : Choice::out;
      counts.sure += is_sure;
    }
  }

  // The largest number but `before` many.
  double largest(const std::vector<double>& x, Index before) {
    work_ = x;
    std::nth_element(work_.begin(), work_.begin() + before, work_.end(), std::greater<>());
    return work_[static_cast<std::size_t>(before)];
  }

  SelectionOptions options_;
  std::vector<Index> at_;  // the places of the free keys of a row
  std::vector<double> lower_, upper_, work_;
};

}  // namespace headfit::detail
