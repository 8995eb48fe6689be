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

// The sums of the positive and of the negative terms of a product, both without their sign.
struct Terms {
  double plus, minus;

  template <class Row>
  static Terms of(const Row& q, const Row& k) {
    const auto terms = q.cwiseProduct(k);
    return {terms.cwiseMax(0.0).sum(), -terms.cwiseMin(0.0).sum()};
  }
};

// What a score that is computed in double may differ from that of a kernel in float32, for a key whose
// terms have sizes that add up to `size`, or less. See `score_error`.
struct ScoreError {
  double of_size, of_score, lost;

  double radius(double size, double score) const {
    return of_size * size + of_score * std::abs(score) + lost;
  }
  double radius(const Terms& x) const { return radius(x.plus + x.minus, x.plus - x.minus); }
  Enclosure of(double score, double size) const {
    const double off = radius(size, score);
    return {score - off, score + off};
  }
  // What is flushed to zero leaves some terms out, which does not exceed the others.
  Enclosure of(double score, const Terms& x) const {
    const Enclosure ends = of(score, x.plus + x.minus);
    const auto most = [&](double sum) { return sum * (1 + of_size + of_score) + 0x1p-24 * lost; };
    return {std::max(ends.lo, -most(x.minus)), std::min(ends.hi, most(x.plus))};
  }
};

// The bound of kernels that compute a product s in float32, in any order, with fused multiply-adds or
// not, from the rows themselves, or from stored numbers that times a scale are the row: then the scales
// are multiplied into the sum one after the other.
//
// Let u = 2^-24 and gamma_m = m u / (1 - m u). Terms p_i pass t = 1 rounding, or 3 where a factor log2(e) and
// its own rounding come to them; d - 1 partial sums are rounded, and 2 products with scales: m = t + d + 1
// in all, so that with S = sum_i |p_i| a partial sum is wrong by at most gamma_m S (Higham, 3.1). The
// exact one is at most M = (S + |s|) / 2, the larger one of the sums of positive and of negative terms. A
// rounding is wrong by at most u of its result, so that the sum is wrong by at most
// gamma_t S + (d - 1) u (M + gamma_m S), and the score, with gamma_2 (|s| + gamma_m S) for the scales, by
//   u (t + (d - 1) / 2) S + u (2 + (d - 1) / 2) |s| + 2 gamma_m^2 S.
//
// With T = 2^-126, less than T is lost where an input or a result is flushed to zero: of the rows
// themselves T sum_i (|q_i| + |k_i|) <= T sqrt(d) (||q|| + ||k||) with the inputs, and T with each of d
// products and d - 1 sums. A scale is at most the norm of its row if the largest stored number is at
// least 1, and neither a scale nor a product of two is flushed. If one is multiplied in last, T with its product, and at most T (2 d - 1 + sqrt(d)) times
// that norm before it. Products of two stored numbers do not underflow. In all it is less than
// T d (2 + 3 (||q|| + ||k||)), times 1 + gamma for later roundings. A factor log2(e) in a row loses
// T sqrt(d) times the other norm, which 2 d - 1 + 2 sqrt(d) <= 3 d leaves room for. Where subnormal
// numbers are kept the same holds with 2^-150 in the place of T.
//
// No partial sum exceeds (1 + gamma) ||q|| ||k||; where that may overflow, the bound is infinite. So it
// is where a scale that is multiplied in last may leave sums too large, of stored numbers below 2^16.
//
// To the bound comes that of the product in double, and what is lost where the ends of an interval
// are computed: half a unit in the last place of the score and of the radius. The other factors are
// larger than all roundings of these formulas, of S and of |s|.
inline ScoreError score_error(Index depth, int roundings, double q_norm, double k_norm_max) {
  constexpr double epsilon = std::numeric_limits<double>::epsilon();
  constexpr double unit = 0x1p-24, least = 0x1p-126;
  const double d = static_cast<double>(depth), norms = q_norm + k_norm_max;
  const double gamma = gamma_above<float>(d + roundings + 1);
  if (!(product_above(1 + gamma, q_norm, k_norm_max) < 0x1.fp127 && norms < 0x1p96)) {
    return {0, 0, no_bound};
  }
  const DotBound own = DotBound::of<double>(depth, depth + 2);
  const double sums = (d - 1) / 2, room = 1 + (d + 32) * epsilon;
  const double lost = least * d * (2 + 3 * norms) * (1 + gamma);
  return {(unit * (roundings + sums) + 2 * gamma * gamma + 2 * own.relative + 8 * epsilon) * room,
          unit * (2 + sums) * room, (lost + own.absolute * (1 + k_norm_max)) * room};
}

// Each thread has an object of its own.
class SelectedKeys {
 public:
  explicit SelectedKeys(const SelectionOptions& options) : options_(options) {}

  // Chooses among the keys of a row at a position. x[c] is the score of the key at place(c), rising,
  // -inf where it is masked; ends(c) encloses what a kernel computes, infinite where that may overflow,
  // and closer(c) does so better.
  template <class Place, class Ends, class Closer>
  ChoiceCounts choose(const double* x, Index count, Index position, const Place& place,
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
    choose_free(options_.budget(), to, counts);
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
