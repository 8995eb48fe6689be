// The max-margin problem of one row: its statement, its keys, how solving it may end, and the proofs.
//
//   Tolerance:  min 1/2 |q|^2   |q.k_j - c - a_j| <= delta/2,  q.k_j >= b + L   j in S
//                               q.k_j <= b                                      elsewhere
//   Equality:   min 1/2 |q|^2   q.k_j - c = a_j                                 j in S
//                               q.k_j - c <= min_S a - (L + delta)              elsewhere
// with c and b free. L = log(1/leak), delta = log(1 + distortion).
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "headfit/base/checkpoint.hpp"

namespace headfit {

enum class RowForm : std::uint8_t { Tolerance, Equality };

struct RowProblem {
  std::span<const std::int32_t> support;  // distinct columns
  std::span<const double> log_weights;  // a_j, in the order of `support`
  double delta = 0.0;
  double log_leak = 0.0;  // L
  RowForm form = RowForm::Tolerance;
};

struct RowSettings {
  int cuts_per_round = 0;  // constraints asked of a scan; 0: 2 d, within [16, 128]
  int max_rounds = 200;  // of scans
  int max_steps = 0;  // active-set steps; 0: 50 (d + constraints in the pool)
  int pool_keys = 0;  // keys kept at once; 0: |S| + 2 d + 3 cuts_per_round
  double feasibility_tol = 1e-13;  // of a constraint, times (max|rhs| + max|k| |q|)
  double scan_tol = 1e-12;  // violation that a scan ignores, on the same scale
  double rhs_tol = 1e-6;  // both tolerances are at most this times max|rhs|
  double dependency_tol = 1e-13;  // below it a new direction is rounding noise
  double proof_ratio = 1e6;  // Infeasible needs proof of |q| max|k| >= this * max|rhs|
  double max_norm = std::numeric_limits<double>::infinity();  // give up if |q| must be larger
};

inline double key_norm(const double* key, std::ptrdiff_t dim) {
  const Eigen::Map<const Eigen::VectorXd> k(key, dim);
  const double norm = k.norm();
  // stableNorm() is many times slower, so it is used only if squares overflow or underflow.
  return norm > 1e-140 && norm < 1e140 ? norm : k.stableNorm();
}

// Row-major keys, one key per row. `stride` is the distance between rows, in doubles.
struct KeyView {
  const double* data = nullptr;
  std::ptrdiff_t rows = 0;
  std::ptrdiff_t cols = 0;
  std::ptrdiff_t stride = 0;
  // The norms of all keys, from KeyNorms. Without them the solver computes the norms that it needs,
  // and scans once more where it would need the largest of all.
  const double* norms = nullptr;
  double largest_norm = std::numeric_limits<double>::infinity();

  const double* row(std::ptrdiff_t j) const { return data + j * stride; }
  double norm(std::ptrdiff_t j) const { return norms ? norms[j] : key_norm(row(j), cols); }
};

// The norms of all keys, for callers that solve many rows with the same keys.
class KeyNorms {
 public:
  explicit KeyNorms(const KeyView& keys) : norms_(static_cast<std::size_t>(keys.rows)) {
    Checkpoints checkpoints;
    for (std::ptrdiff_t j = 0; j < keys.rows; ++j) {
      norms_[static_cast<std::size_t>(j)] = key_norm(keys.row(j), keys.cols);
      largest_ = std::max(largest_, norms_[static_cast<std::size_t>(j)]);
      checkpoints.after(keys.cols);
    }
  }
  // The returned view must not be used after this object is destroyed.
  KeyView add_to(KeyView keys) const {
    keys.norms = norms_.data();
    keys.largest_norm = largest_;
    return keys;
  }

 private:
  std::vector<double> norms_;
  double largest_ = 0.0;
};

enum class RowStatus : std::uint8_t {
  NeedsScan,  // a scan should look for violated constraints, to be passed to add()
  Optimal,  // feasible up to scan_tol, and of least norm
  Infeasible,  // proved by a Farkas witness with a residual at rounding level
  NormLimit,  // a witness proves that |q| > max_norm is needed
  IterationLimit,  // the limit of steps or rounds is reached
  Stalled  // rounding exceeds the tolerances (|k| |q| near 1e10 max|rhs|)
};

// The kinds of constraints. A kind and a column name the constraint that a term of a witness
// multiplies.
enum class ConstraintKind : std::uint8_t {
  RatioUpper,  // c - q.k >= -(a + delta/2)
  RatioLower,  // q.k - c >= a - delta/2
  Margin,  // q.k - b >= L
  Outside,  // b - q.k >= 0, or in the equality form c - q.k >= L + delta - min_S a
  RatioEqual  // c - q.k = -a; the only kind whose multiplier may be negative
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
