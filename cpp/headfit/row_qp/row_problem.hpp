// The per-row max-margin problem: what it is, how it ends, and what proves it.
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
  int cuts_per_round = 0;         // worst violators asked of each scan; 0: 2 d in [16, 128]
  int max_rounds = 200;           // scans
  int max_steps = 0;              // active-set steps a row; 0: 50 (d + rows in the pool)
  int pool_points = 0;            // keys kept at once; 0: |S| + 2 d + 3 cuts_per_round
  double feasibility_tol = 1e-13; // on a slack, times (max|rhs| + max|k| |q|)
  double scan_tol = 1e-12;        // same scale: what a scan may leave violated
  double rhs_tol = 1e-6;          // both tolerances stay below this times max|rhs|
  double dependency_tol = 1e-13;  // a new direction this small beside its terms is none
  double proof_ratio = 1e6;       // Infeasible needs a proof of |q| max|k| >= this * max|rhs|
  double max_norm = std::numeric_limits<double>::infinity();  // give up beyond, with the proof
};

enum class RowStatus : std::uint8_t {
  NeedsScan,       // ask for violators of q above threshold, then add() them
  Optimal,         // feasible to scan_tol, and of least norm
  Infeasible,      // Farkas witness with a residual at rounding level
  NormLimit,       // witness proves that |q| > max_norm is needed
  IterationLimit,  // steps or rounds used up
  Stalled          // rounding exceeds the tolerances (|k||q| near 1e10 max|rhs|)
};

// One term of a witness. The constraint it multiplies is named by kind and column.
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

// Multipliers m >= 0 whose constraint gradients sum to exactly 0 in c and b and to
// `residual` in q, while the right-hand sides sum to gap > 0. Every feasible q then
// has q.residual >= gap, so |q| >= gap/|residual|; residual 0 excludes every q.
// The values are multiples of one power of two with exact sums, so that a rational
// check starts from the same statement. `norm_bound` counts its own rounding.
struct Witness {
  std::vector<Multiplier> terms;
  double residual = 0.0;
  double gap = 0.0;
  double norm_bound = 0.0;
};

struct Violator {
  std::int32_t column;
  double value;  // q.k_column

  // Larger values first, then lower columns: a list does not depend on threads.
  bool before(const Violator& other) const {
    return value > other.value || (value == other.value && column < other.column);
  }
};

// Appends the columns off the support (and not masked) with q.k > threshold: at most
// `limit` of them, the largest values.
using ViolatorScan = std::function<void(std::span<const double> q, double threshold, int limit,
                                        std::vector<Violator>& out)>;

}  // namespace headfit
