// Soft fits: finds a head of a given size whose attention is close, in KL divergence, to a dense
// target, by descent from a given start.
#pragma once

#include <functional>
#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/soft/soft_target.hpp"

namespace headfit {

enum class SoftStatus {
  Enough,      // the mean divergence per row is at most `enough`
  Converged,  // `window` steps changed the loss by less than the tolerance, or no step lowers it
  StepLimit,
  TimeLimit,
  Stopped,  // the progress function returned false
};

template <class T>
struct SoftOptions {
  Heads<T> init_q, init_k;
  Index max_steps = 1000;
  double tolerance = 1e-3;  // relative decrease of the loss over `window` steps
  double enough = 1e-6;  // in nats per row
  double time_limit = std::numeric_limits<double>::infinity();
  // Returning false stops the fit.
  std::function<bool(Index step, double mean_divergence)> progress = {};
};

template <class T>
struct SoftResult {
  SoftStatus status = SoftStatus::Converged;
  Matrix<T> q, k;
  std::vector<double> history;  // the mean divergence per row, at the start and after each step
  Index evaluations = 0;
  Index refreshes = 0;  // how often the curvature was computed
  double seconds = 0;
};

// Over how many steps the tolerance compares the loss, and how many steps share one curvature.
inline constexpr Index soft_window = 10;
inline constexpr Index soft_refresh = 10;

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
