// Scores that are products, enclosed wherever kernels round.
#pragma once

#include <algorithm>
#include <cmath>

#include "headfit/certify/rounding.hpp"
#include "headfit/certify/selection.hpp"

namespace headfit::detail {

// The sums of the positive and of the negative terms of a product, both without their sign.
struct Terms {
  double plus, minus;

  template <class Row>
  static Terms of(const Row& q, const Row& k) {
    const auto terms = q.cwiseProduct(k);
    return {terms.cwiseMax(0.0).sum(), -terms.cwiseMin(0.0).sum()};
  }
};

// By how much a score in double may differ from that of a kernel in float32, for a key whose
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
// Let u = 2^-24. Terms p_i pass t = 1 rounding, or 3 where a factor log2(e) and its own rounding come to
// them, and 2 products with scales are rounded. The exact sum of some of the terms is at most
// M = (S + |s|) / 2 in size, the larger one of the sums of positive and of negative terms, with
// S = sum_i |p_i|. Let a be so that sums add errors of at most a times the largest number that is added,
// or that results, and gamma = m / (1 - m) with m = a + (t + 2) u. A computed partial sum is wrong by at
// most gamma S (Higham, 3.1), so it and the numbers that it is made of are at most M + gamma S in size.
// So the sum is wrong by at most gamma_t S + a (M + gamma S), and the score, with
// gamma_2 (|s| + gamma S) for the scales, by
//   (t u + a / 2) S + (2 u + a / 2) |s| + 2 gamma^2 S.
//
// Sums in float32, rounded to nearest, are d - 1 roundings: a = (d - 1) u. To these come what tensor
// cores truncate of sums with fewer bits, `truncated_roundings`.
//
// With T = 2^-126, less than T is lost where an input or a result is flushed to zero: of the rows
// themselves T sum_i (|q_i| + |k_i|) <= T sqrt(d) (||q|| + ||k||) with the inputs, and T with each of d
// products and d - 1 sums. A scale is at most the norm of its row if the largest stored number is at
// least 1, and neither a scale nor a product of two is flushed. If one is multiplied in last, T with its
// product, and at most T (2 d - 1 + sqrt(d)) times that norm before it. Products of two stored numbers do
// not underflow. In all it is less than T d (2 + 3 (||q|| + ||k||)), times 1 + gamma for later roundings.
// A factor log2(e) in a row loses T sqrt(d) times the other norm, which 2 d - 1 + 2 sqrt(d) <= 3 d leaves
// room for. Where subnormal numbers are kept the same holds with 2^-150 in the place of T.
//
// No partial sum exceeds (1 + gamma) ||q|| ||k||; where that may overflow, the bound is infinite. So it
// is where a scale that is multiplied in last may leave sums too large, of stored numbers below 2^16,
// and where gamma is not below 1/3.
//
// To the bound comes that of the product in double, and what is lost where the ends of an interval
// are computed: half a unit in the last place of the score and of the radius. The other factors are
// larger than all roundings of these formulas, of S and of |s|.
inline ScoreError score_error(Index depth, int roundings, int sum_bits, double q_norm,
                              double k_norm_max) {
  constexpr double epsilon = std::numeric_limits<double>::epsilon();
  constexpr double unit = 0x1p-24, least = 0x1p-126;
  const double d = static_cast<double>(depth), norms = q_norm + k_norm_max;
  const double sums = d - 1 + truncated_roundings(depth, sum_bits);
  const double gamma = gamma_above<float>(sums + roundings + 2);
  if (!(gamma < 1.0 / 3 && product_above(1 + gamma, q_norm, k_norm_max) < 0x1.fp127 &&
        norms < 0x1p96)) {
    return {0, 0, no_bound};
  }
  const DotBound own = DotBound::of<double>(depth, depth + 2);
  const double room = 1 + (d + 32) * epsilon;
  const double lost = least * d * (2 + 3 * norms) * (1 + gamma);
  return {(unit * (roundings + sums / 2) + 2 * gamma * gamma + 2 * own.relative + 8 * epsilon) *
              room,
          unit * (2 + sums / 2) * room, (lost + own.absolute * (1 + k_norm_max)) * room};
}

// What becomes of a score that is rounded to a format before scores are compared. That keeps the order
// of numbers, and so does flushing subnormal numbers to zero, before they are rounded or after. No score
// of the row exceeds `most`, hidden ones included: a kernel that adds -inf to those makes NaN of infinity,
// which some take for the largest. So nothing is known of a row in which a score may overflow.
inline Enclosure rounded_score(const Enclosure& score, const Kernel& kernel, double most) {
  if (!kernel.logits) return score;
  if (!(most < kernel.logits->largest)) return Enclosure::unknown();
  const double least = std::ldexp(1.0, kernel.logits->min_exponent);
  const auto [lo, hi] = rounded(score, kernel.logits, kernel.fused);
  return {score.lo > 0 && score.lo < least ? 0 : lo, score.hi < 0 && score.hi > -least ? 0 : hi};
}

}  // namespace headfit::detail
