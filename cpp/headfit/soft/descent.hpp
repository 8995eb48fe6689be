// The descent to a dense target: quasi-Newton steps with a line search, and the rules for stopping.
#pragma once

#include <chrono>
#include <cmath>

#include "headfit/soft/fit_soft.hpp"
#include "headfit/soft/loss.hpp"
#include "headfit/soft/quasi_newton.hpp"

namespace headfit::soft {

inline constexpr Index memory = 12;  // steps that the quasi-Newton method remembers
inline constexpr double sufficient = 1e-4;  // share of the predicted decrease (Armijo's rule)
inline constexpr int most_trials = 12;  // step lengths tried in a line search

// One matrix with the queries, and below them the keys.
template <class T>
Matrix<T> stacked(const Heads<T>& q, const Heads<T>& k) {
  Matrix<T> head(q.rows + k.rows, q.cols);
  head << q[0], k[0];
  return head;
}

template <class T>
class Descent {
 public:
  Descent(const TargetRows<T>& target, const Mask& mask, const SoftOptions<T>& options,
          const Run& run)
      : options_(options),
        run_(run),
        rows_(static_cast<double>(std::max<Index>(1, target.asking_rows()))),
        loss_(target, mask, options.init_q.cols, run),
        preconditioner_(target.rows() + target.cols(), target.rows(), options.init_q.cols, run),
        quasi_newton_(memory, preconditioner_),
        head_(stacked(options.init_q, options.init_k)) {}

  SoftResult<T> run() {
    refresh();
    result_.history.push_back(value_ / rows_);
    for (Index step = 0; !finished(step); ++step) {
      if (!advance() && !advance_afresh()) {
        result_.status = SoftStatus::Converged;
        break;
      }
      result_.history.push_back(value_ / rows_);
    }
    result_.q = head_.topRows(loss_.queries());
    result_.k = head_.bottomRows(loss_.keys());
    result_.seconds = seconds();
    return std::move(result_);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Computes loss, gradient and curvature of the current head.
  void refresh() {
    value_ = loss_.evaluate(head_, gradient_, &curvature_);
    preconditioner_.refresh(curvature_);
    ++result_.evaluations;
    ++result_.refreshes;
    age_ = 0;
  }

  // Makes one step to a lower loss. Returns false if the line search finds none.
  bool advance() {
    direction_ = gradient_;
    quasi_newton_.to_direction(direction_);
    const double slope = inner(gradient_, direction_);
    if (!(slope < 0) || !std::isfinite(slope)) return false;
    // By how much rounding may raise the sum over all rows.
    const double noise = static_cast<double>(std::numeric_limits<T>::epsilon()) *
                         (std::abs(value_) + std::sqrt(rows_));
    const bool renew = ++age_ >= soft_refresh;
    double length = 1;
    for (int trial = 0; trial < most_trials; ++trial) {
      next_ = head_ + static_cast<T>(length) * direction_;
      if (!next_.allFinite()) {
        length *= 0.1;
        continue;
      }
      const bool with_curvature = renew && trial == 0;
      const double value = evaluate_next(with_curvature ? &curvature_ : nullptr);
      if (value <= value_ + sufficient * length * slope + noise) {
        accept(value, with_curvature);
        return true;
      }
      // The minimum of the parabola through both values and the slope, within bounds.
      const double best = -slope * length * length / (2 * (value - value_ - slope * length));
      length = std::isfinite(best) ? std::clamp(best, 0.1 * length, 0.5 * length) : 0.1 * length;
    }
    return false;
  }

  // The loss after a step, with its gradient; infinite where a step is so long that logits overflow.
  double evaluate_next(Matrix<T>* curvature) {
    ++result_.evaluations;
    try {
      return loss_.evaluate(next_, next_gradient_, curvature);
    } catch (const NonFiniteError&) {
      return std::numeric_limits<double>::infinity();
    }
  }

  // Tries again with a new curvature and without the memory of earlier steps, which may be
  // outdated.
  bool advance_afresh() {
    if (age_ <= 1 && !quasi_newton_.remembers()) return false;
    quasi_newton_.forget();
    refresh();
    return advance();
  }

  void accept(double value, bool with_curvature) {
    next_.swap(head_);
    next_gradient_.swap(gradient_);
    next_ = head_ - next_;
    next_gradient_ = gradient_ - next_gradient_;
    quasi_newton_.learn(next_, next_gradient_);
    value_ = value;
    if (with_curvature) {
      preconditioner_.refresh(curvature_);
      ++result_.refreshes;
      age_ = 0;
    }
  }

  bool finished(Index step) {
    const auto now = Clock::now();
    if (run_.poll && now - polled_ > std::chrono::milliseconds(50)) {
      polled_ = now;
      run_.poll();
    }
    const auto ending = options_.limits.ending(step, result_.history, seconds());
    if (ending) result_.status = *ending;
    return ending.has_value();
  }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }

  const SoftOptions<T>& options_;
  const Run& run_;
  Clock::time_point begun_ = Clock::now(), polled_ = begun_;
  double rows_;
  Loss<T> loss_;
  Preconditioner<T> preconditioner_;
  QuasiNewton<T> quasi_newton_;
  Matrix<T> head_, gradient_, direction_, next_, next_gradient_, curvature_;
  double value_ = 0;
  Index age_ = 0;  // how many steps ago the curvature was computed
  SoftResult<T> result_;
};

}  // namespace headfit::soft
