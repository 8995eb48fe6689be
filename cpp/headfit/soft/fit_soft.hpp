// The head of a given size whose attention is closest, in KL, to a dense target, as far as
// descent from a start goes.
#pragma once

#include <functional>
#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/soft/soft_target.hpp"

namespace headfit {

enum class SoftStatus {
  Enough,      // the mean divergence of a row is at most `enough`
  Converged,   // `window` steps changed the loss by less than the tolerance, or none lowers it
  StepLimit,
  TimeLimit,
  Stopped,     // progress said so
};

template <class T>
struct SoftOptions {
  Heads<T> init_q, init_k;
  Index max_steps = 1000;
  double tolerance = 1e-3;  // relative decrease of the loss over `window` steps
  double enough = 1e-6;     // nats a row
  double time_limit = std::numeric_limits<double>::infinity();
  std::function<bool(Index step, double mean_divergence)> progress = {};  // false: stop
};

template <class T>
struct SoftResult {
  SoftStatus status = SoftStatus::Converged;
  Matrix<T> q, k;
  std::vector<double> history;  // the mean divergence of a row, at the start and after each step
  Index evaluations = 0;
  Index refreshes = 0;  // of the curvature
  double seconds = 0;
};

// Steps that the tolerance looks back, and steps that share a curvature.
inline constexpr Index soft_window = 10;
inline constexpr Index soft_refresh = 10;

// Refuses a target that is none, by row and column, before anybody reads it.
template <class T>
void check_soft_target(const SoftTarget<T>& target, const Run& run);

template <class T>
SoftResult<T> fit_soft(const SoftTarget<T>& target, const Mask& mask, const SoftOptions<T>& options,
                       const Run& run);

// The loss, its gradient and its curvature at one head, for tests: the sum of the divergences
// of all rows; the rows of both matrices are the queries and below them the keys.
template <class T>
struct SoftLoss {
  double loss = 0;
  Matrix<T> gradient;
  Matrix<T> curvature;  // lower triangles
};
template <class T>
SoftLoss<T> soft_loss(const SoftTarget<T>& target, const Mask& mask, const Heads<T>& q,
                      const Heads<T>& k, const Run& run);

}  // namespace headfit
