// The max-margin problem of one row: its statement, how solving it may end, and the proofs.
//
//   Tolerance:  min 1/2 |q|^2   |q.k_j - c - a_j| <= delta/2,  q.k_j >= b + L   j in S
//                               q.k_j <= b                                      elsewhere
//   Equality:   min 1/2 |q|^2   q.k_j - c = a_j                                 j in S
//                               q.k_j - c <= min_S a - (L + delta)              elsewhere
// with c and b free. L = log(1/leak), delta = log(1 + distortion).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "headfit/row_qp/keys.hpp"

namespace headfit {

enum class RowForm : std::uint8_t { Tolerance, Equality };

struct RowProblem {
  std::span<const std::int32_t> support;  // distinct columns
  std::span<const double> log_weights;    // a_j, in the order of `support`
  double delta = 0.0;
  double log_leak = 0.0;  // L
  RowForm form = RowForm::Tolerance;
};

struct RowSettings {
  int cuts_per_round = 0;         // constraints asked of a scan; 0: 2 d, within [16, 128]
  int max_rounds = 200;           // of scans
  int max_steps = 0;              // active-set steps; 0: 50 (d + constraints in the pool)
  int pool_points = 0;            // keys kept at once; 0: |S| + 2 d + 3 cuts_per_round
  double feasibility_tol = 1e-13; // of a constraint, times (max|rhs| + max|k| |q|)
  double scan_tol = 1e-12;        // violation that a scan ignores, on the same scale
  double rhs_tol = 1e-6;          // both tolerances are at most this times max|rhs|
  double dependency_tol = 1e-13;  // below it a new direction is rounding noise
  double proof_ratio = 1e6;       // Infeasible needs proof of |q| max|k| >= this * max|rhs|
  double max_norm = std::numeric_limits<double>::infinity();  // give up if |q| must be larger
};

enum class RowStatus : std::uint8_t {
  NeedsScan,       // a scan should look for violated constraints, to be passed to add()
  Optimal,         // feasible up to scan_tol, and of least norm
  Infeasible,      // proved by a Farkas witness with a residual at rounding level
  NormLimit,       // a witness proves that |q| > max_norm is needed
  IterationLimit,  // the limit of steps or rounds is reached
  Stalled          // rounding exceeds the tolerances (|k| |q| near 1e10 max|rhs|)
};

// The kinds of constraints. A kind and a column name the constraint that a term of a witness
// multiplies.
enum class ConstraintKind : std::uint8_t {
  RatioUpper,  // c - q.k >= -(a + delta/2)
  RatioLower,  // q.k - c >= a - delta/2
  Margin,      // q.k - b >= L
  Outside,     // b - q.k >= 0, or in the equality form c - q.k >= L + delta - min_S a
  RatioEqual   // c - q.k = -a; the only kind whose multiplier may be negative
};

struct Multiplier {
  ConstraintKind kind;
  std::int32_t column;
  double value;
};

// A Farkas witness: multipliers m >= 0 for which the gradients of the constraints sum to exactly 0
// in c and b and to a vector r in q, while the right-hand sides sum to gap > 0. Then every feasible
// q has q.r >= gap, so |q| >= gap / |r|; with r = 0 there is no feasible q. `residual` is |r|. The
// multipliers are multiples of one power of two, and their sums are exact, so that a check in
// rational arithmetic starts from the same numbers. `norm_bound` includes its own rounding error.
struct Witness {
  std::vector<Multiplier> terms;
  double residual = 0.0;
  double gap = 0.0;
  double norm_bound = 0.0;
};

struct Violator {
  std::int32_t column;
  double value;  // q.k_column
};

// Appends the columns off the support, and not masked, for which q.k > threshold: at most `limit`
// of them, the largest values first, and of equal values the lower column first.
using ViolatorScan = std::function<void(std::span<const double> q, double threshold, int limit,
                                        std::vector<Violator>& out)>;

}  // namespace headfit
