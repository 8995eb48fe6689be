// When a descent of a mean divergence ends: the limits that callers set, their check after each step,
// and the time that has passed.
#pragma once

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "headfit/base/errors.hpp"
#include "headfit/base/threads.hpp"

namespace headfit {

enum class DescentStatus {
  Enough,  // the mean divergence per row is at most `enough`
  Converged,  // `window` steps changed the loss by less than the tolerance, or no step lowers it
  StepLimit,
  TimeLimit,
  Stopped,  // the progress function returned false
};

struct DescentLimits {
  Index max_steps = 1000;
  double tolerance = 1e-3;  // relative decrease of the loss over `window` steps
  double enough = 1e-6;  // in nats per row
  double time_limit = std::numeric_limits<double>::infinity();
  // Returning false stops the descent.
  std::function<bool(Index step, double mean_divergence)> progress = {};
  Index window = 10;

  // Throws InputError for limits that nothing can be compared with.
  void check() const {
    if (max_steps < 0) throw InputError("max_steps must not be negative");
    if (window < 1) throw InputError("window must be at least 1");
    for (const double limit : {tolerance, enough, time_limit}) {
      if (std::isnan(limit)) throw InputError("tolerance, enough and time_limit must not be nan");
    }
  }

  // Why a descent ends after `step` steps; nothing while it goes on. `history` has the mean
  // divergence at the start and after each step. The tolerance compares no steps before `first`.
  std::optional<DescentStatus> ending(Index step, const std::vector<double>& history,
                                      double seconds, Index first = 0) const {
    const double now = history.back();
    if (progress && !progress(step, now)) return DescentStatus::Stopped;
    if (now <= enough) return DescentStatus::Enough;
    if (step >= first + window && *(history.end() - 1 - window) - now <= tolerance * now) {
      return DescentStatus::Converged;
    }
    return used_up(step, seconds);
  }

  // Which of the limits on steps and time is reached; nothing while neither is.
  std::optional<DescentStatus> used_up(Index step, double seconds) const {
    if (step >= max_steps) return DescentStatus::StepLimit;
    if (seconds > time_limit) return DescentStatus::TimeLimit;
    return std::nullopt;
  }
};

// The time since a descent began. Between two steps it polls, since a step may be too short for its
// own checkpoints to do so.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }

  // Calls the run's poll, unless that was done less than 50 ms ago.
  void poll(const Run& run) {
    const auto now = Clock::now();
    if (!run.poll || now - polled_ <= Interruptible::poll_every) return;
    polled_ = now;
    run.poll();
  }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point begun_ = Clock::now(), polled_ = begun_;
};

}  // namespace headfit
