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
// intervals overlap. With at most b free keys all are selected, unless a score may overflow beside a
// hidden key: -inf ties with that, and a kernel that hides keys by adding -inf makes NaN of +inf.
//
// This is done twice. B is all sure keys and some of the possible ones, which have no smaller scores
// than the other possible ones. So the same holds of the possible keys alone, with as many to select as
// are left, and intervals that take longer to find.
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

// Each thread has an object of its own.
class SelectedKeys {
 public:
  explicit SelectedKeys(const SelectionOptions& options) : options_(options) {}

  // Chooses among the keys of a row at a position, all others of `keys` being hidden. x[c] is the
  // score of the key at place(c), rising, -inf where it is masked; ends(c) encloses what a kernel
  // computes, infinite where that may overflow, and closer(c) does so better.
  template <class Place, class Ends, class Closer>
  ChoiceCounts choose(const double* x, Index count, Index keys, Index position, const Place& place,
                      const Ends& ends, const Closer& closer, Choice* to) {
    ChoiceCounts counts;
    at_.clear();
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
      at_.push_back(c);
    }
    counts.may_overflow = !enclose(ends);
    counts.selected = counts.sure + std::min(std::ssize(at_), options_.budget());
    if (counts.may_overflow && seen < keys) {
      for (const Index c : at_) to[c] = Choice::possible;
    } else {
      choose_free(options_.budget(), to, counts);
    }
    if (counts.open() == 0 || counts.may_overflow) return counts;
    std::erase_if(at_, [&](Index c) { return to[c] != Choice::possible; });
    enclose(closer);
    choose_free(counts.open(), to, counts);
    return counts;
  }

 private:
  // Finds the ends of all scores; whether none may overflow.
  template <class Ends>
  bool enclose(const Ends& ends) {
    lower_.resize(at_.size()), upper_.resize(at_.size());
    bool is_finite = true;
    for (std::size_t f = 0; f < at_.size(); ++f) {
      const Enclosure score = ends(at_[f]);
      lower_[f] = score.lo, upper_[f] = score.hi;
      is_finite &= score.hi < no_bound;
    }
    return is_finite;
  }

  void choose_free(Index budget, Choice* to, ChoiceCounts& counts) {
    if (std::ssize(at_) <= budget) {
      for (const Index c : at_) to[c] = Choice::sure;
      counts.sure += std::ssize(at_);
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
