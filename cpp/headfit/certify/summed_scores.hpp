// Scores of an index of the form "sum", enclosed wherever kernels in float32 round.
//
// Let x_hj be the exact product of query head h and key j, L_h the logarithm of the sum of exp(x_hj)
// over the visible keys, and w_j the sum of exp(x_hj - L_h) over the heads. The score is log w_j, and
// keys with larger w_j have larger scores. A kernel computes, with u = 2^-24,
//
// - products X_hj, wrong by at most r_hj: `score_error`, with a factor log2(e);
// - for each head one shift M_h, the largest X_hj so far or in all, rounded twice at most;
// - exponentials e_hj of X_hj - M_h, and their sum S_h, of n terms in any order. Blocks of 16 keys or
//   more may have shifts of their own: sums are multiplied by the exponential of the difference where
//   the shift grows;
// - then either   A  C_h = M_h + log S_h, scores as log sum_h exp(X_hj - C_h), the largest term first,
//          or     B  the sum over h of e_hj / S_h, or its logarithm or mean,
//          or     C  the sum over h of exp(X_hj - C_h), the same.
//
// Assumed are: exponents that are wrong by at most 4 u of their size (powers of 2 of multiples of log2 e
// are within that); exponentials and quotients within 2^-21 = 8 u of their size, and exponentials
// below 2^-126 within 2^-125; an exponential of 0 that is 1; logarithms within 8 u (1 + their size);
// all sums rounded to float32, subnormal numbers kept or flushed to zero.
//
// An error e of a logarithm is a factor exp(e) of what it is taken of; so all below are errors of
// logarithms, which add up. An exponent z <= 1 that is wrong by a |z| is, in a sum of n exponentials
// with the largest of about 1, worth a (1 + log n): by the inequality of power means the sum of
// exp(z (1 - a)) is at most n^a times that of exp(z), and exp(a) comes from z > 0. Likewise the sum over
// h of exp(z_h (1 +- a)) with the logarithm s is off by a (|s| + log G) for G heads.
//
// Of each head, the same for all its keys:
//   log S_h: r_h = max_j r_hj of the products, 8 u of the exponentials, 4 u (2 + log n) of exponents,
//            gamma_N of sums and blocks, with N = n + 9 min(n, m / 16 + 1): each block multiplies by an
//            exponential, 8 u, and rounds, u;
//   C_h:     8 u (2 + log n) of the logarithm, and to round M_h and C_h 4 u ||q_h|| max ||k|| and
//            u (2 + log n).
// That is r_h + 4 u ||q_h|| max ||k|| + gamma_N + u (34 + 13 log n).
//
// Of each key: r_j = max_h r_hj; exponents 4 u (|s| + log G + 2), in A twice, since X_hj - M_h and
// X_hj - C_h are at most |log w_hj| + 2; exponentials 8 u; in B one of a block's shift with its product
// 9 u, and the quotient 8 u; the sum over heads (G + 1) u; a logarithm 8 u (2 + log G), in B and C, where
// it is s, 8 u (2 + |s| + log G), and before it the mean's quotient 8 u; and in A the sum with the
// largest term u (2 + |s|). So it is
//   in A  r_j + u (43 + G + 9 |s| + 16 log G),
//   in B  r_j + u (58 + G + 12 |s| + 12 log G),  in C 17 u less.
// In all a score s is off by at most
//   r_j + r_h + 4 u ||q_h|| max ||k|| + gamma_N + u (101 + G + 14 log n + 13 |s| + 16 log G),
// where 9 u and more are left for terms of second order. It is used where it is below 1/2, even at
// |s| = 100, and what keys have in common too: then |M_h - max_j x_hj| < 1 and S_h > 1/3. With one head
// what its keys have in common moves all scores alike, and no order depends on it:
// r_j + u (67 + 13 |s|) remain.
//
// Where it is larger nothing is known of scores, but none is NaN, so that as many keys are selected as
// there are to select, if products are at most 2^28, and off by at most a third: then M_h is off by at
// most 4 u 2^28 = 64, which is more than twice a rounding of the largest product and of its factor
// log2(e), exponentials are below exp(64), or infinite in C, and S_h is between exp(-64) and n exp(64).
// Beyond it all exponentials of a head may be 0, or infinite, and their quotients NaN.
//
// What underflows is lost: in all less than G 2^-120 of w_j, 2^-125 over S_h >= 1/3 of each e_hj and as
// much again of quotients and sums. B and C round it to 0. Below exp(-100), where A still tells keys
// apart, an end from above is taken at exp(-100).
//
// The scan itself is a kernel of kind B, with units in the last place that are 2^29 times smaller: it is
// within a share of 2^-20 of the bound, and so are the roundings of these formulas.
#pragma once

#include <algorithm>
#include <cmath>

#include "headfit/certify/product_scores.hpp"

namespace headfit::detail {

// Replaces the products of a head in one row by their softmax; -inf where a key is masked stays so.
// Returns how many keys are visible.
inline Index to_softmax(double* x, Index count) {
  const double shift = count > 0 ? *std::max_element(x, x + count) : -no_bound;
  if (shift == -no_bound) return 0;
  double sum = 0;
  Index seen = 0;
  for (Index c = 0; c < count; ++c) {
    if (x[c] == -no_bound) continue;
    x[c] = std::exp(x[c] - shift);
    sum += x[c];
    ++seen;
  }
  for (Index c = 0; c < count; ++c) x[c] /= sum;
  return seen;
}

// What is known of the scores of a row: a kernel's, as a sum of softmaxes, is within the ends, up to a
// factor that all keys of the row share.
class SumError {
 public:
  // Of the products of `heads` query heads and `seen` visible keys of `cols`, which are as wrong as
  // `products` says, none is larger than size_max.
  static SumError of(const ScoreError& products, Index heads, double size_max, Index seen,
                     Index cols) {
    SumError error;
    if (seen == 0) return error;
    const double n = static_cast<double>(seen), count = static_cast<double>(heads);
    const double blocks = std::min(n, static_cast<double>(cols) / 16 + 1);
    const double most = products.radius(size_max, size_max);
    // What the keys of a head have in common; infinite where a product may overflow.
    const double common =
        most + unit * (4 * size_max + 35 + 14 * std::log(n)) + gamma_above<float>(n + 9 * blocks);
    error.constant_ = unit * (66 + count + 16 * std::log(count)) + (heads > 1 ? common : 0);
    error.lost_ = count * 0x1p-120;
    error.is_number_ = most < no_bound && size_max <= 0x1p28;
    error.is_known_ = common < 0.5 && error.at(lowest_log, most) < 0.5;
    return error;
  }

  bool is_known() const { return is_known_; }
  // The ends for a sum of softmaxes as the scan computes it, of products wrong by at most `radius`.
  Enclosure of(double sum, double radius) const {
    if (!is_known_) return is_number_ ? Enclosure{0, largest} : Enclosure::unknown();
    const double log_sum = sum > 0 ? std::max(std::log(sum), lowest_log) : lowest_log;
    const double e = at(log_sum, radius);
    // exp(-e) >= 1 - e, and exp(e) <= 1 + e + e^2 up to e = 1/2.
    return {sum * (1 - e) - lost_, std::max(sum, least_sum) * (1 + e + e * e) + lost_};
  }

 private:
  static constexpr double unit = 0x1p-24, largest = std::numeric_limits<double>::max();
  static constexpr double lowest_log = -100, least_sum = 0x1p-144;  // more than exp(-100)

  double at(double log_sum, double radius) const {
    return (radius + constant_ + 13 * unit * std::abs(log_sum)) * (1 + 0x1p-20);
  }

  double constant_ = 0, lost_ = 0;
  bool is_known_ = false, is_number_ = false;
};

}  // namespace headfit::detail
