// Soft fits: finds a head of a given size whose attention is close, in KL divergence, to a dense
// target, by descent from a given start.
#pragma once

#include <vector>

#include "headfit/descent/limits.hpp"
#include "headfit/soft/target_rows.hpp"

namespace headfit {

template <class T>
struct SoftOptions {
  Heads<T> init_q, init_k;
  DescentLimits limits = {};
};

template <class T>
struct SoftResult {
  DescentStatus status = DescentStatus::Converged;
  Matrix<T> q, k;
  std::vector<double> history;  // the mean divergence per row, at the start and after each step
  Index evaluations = 0;
  Index refreshes = 0;  // how often the curvature was computed
  double seconds = 0;
};

// Throws TargetError, which names the row and column, if the target is not valid.
template <class T>
void check_soft_target(const SoftTarget<T>& target, const Run& run);

template <class T>
SoftResult<T> fit_soft(const SoftTarget<T>& target, const Mask& mask, const SoftOptions<T>& options,
                       const Run& run);

// The loss of one head, which is the sum of the divergences of all rows, with its gradient and
// curvature, for tests. The rows of both matrices belong to the queries and, below them, to the
// keys.
template <class T>
struct SoftLoss {
  double loss = 0;
  Matrix<T> gradient;
  Matrix<T> curvature;  // each row holds a lower triangle
};
template <class T>
SoftLoss<T> soft_loss(const SoftTarget<T>& target, const Mask& mask, const Heads<T>& q,
                      const Heads<T>& k, const Run& run);

}  // namespace headfit
