// The descent of maps: quasi-Newton steps with a line search, and the rules for stopping.
#include <chrono>
#include <cmath>

#include "headfit/base/worker_pool.hpp"
#include "headfit/compress/compress.hpp"
#include "headfit/compress/metric.hpp"
#include "headfit/soft/quasi_newton.hpp"

namespace headfit {
namespace compress {
namespace {

constexpr Index memory = 20;  // steps that the quasi-Newton method remembers
constexpr double sufficient = 1e-4;  // share of the predicted decrease (Armijo's rule)
constexpr int most_trials = 12;  // step lengths tried in a line search
// Rounding by this share of the decrease that the tolerance compares is neglected.
constexpr double trusted = 0.1;
// Where a line search finds no lower loss, and what is left to gain is less than this share of the
// rounding, rows of the original are computed again from there on. The share is small because most
// rounding cancels in the sum over all rows.
constexpr double hidden = 0.05;
// The loss on the other passages is looked at after every one of the first steps, which change the
// maps most and may already fit what only the fitted passages have, and then every few steps.
constexpr Index first_looks = 10, look_every = 10;

template <class T>
class Descent {
 public:
  Descent(const CompressLoss<T>& loss, const CompressLoss<T>* judge, const CompressOptions& options,
          const Run& run)
      : loss_(loss),
        judge_(judge),
        options_(options),
        run_(run),
        metric_(metric_of(loss.moments(), options)),
        quasi_newton_(memory, *metric_),
        maps_(options.start) {}

  CompressResult run() {
    metric_->refresh(maps_);
    evaluate_here();
    result_.history.push_back(value_);
    result_.judged = std::numeric_limits<double>::infinity();
    for (Index step = 0; !finished(step);) {
      if (judge_ && (step < first_looks || step % look_every == 0)) look();
      if (step % soft_refresh == 0) metric_->refresh(maps_);
      if (advance() || (!hidden_by_rounding_ && advance_afresh())) {
        result_.history.push_back(value_);
        ++step;
      } else if (hidden_by_rounding_ || may_be_rounding()) {
        compute_carefully(step);
      } else {
        result_.status = SoftStatus::Converged;
        break;
      }
    }
    if (judge_) look();
    result_.maps = std::move(maps_);
    result_.seconds = seconds();
    return std::move(result_);
  }

 private:
  using Clock = std::chrono::steady_clock;

  void evaluate_here() {
    ++result_.evaluations;
    value_ = loss_.evaluate(maps_, &gradient_, run_, targets());
  }

  const Targets<T>* targets() const { return targets_.empty() ? nullptr : &targets_; }

  // Whether an end is not to be trusted: rounding may have changed the loss by what the tolerance
  // asks for.
  bool may_be_rounding() const {
    return !targets() && loss_.rounding() > trusted * options_.limits.tolerance * value_;
  }

  // From here on rows of the original are computed again in each evaluation.
  void compute_carefully(Index step) {
    const double before = value_;
    hidden_by_rounding_ = false;
    targets_ = loss_.all_targets(run_);
    evaluate_here();
    result_.history.back() = value_;
    const bool differs =
        std::abs(before - value_) > trusted * options_.limits.tolerance * std::abs(value_);
    if (differs) first_ = step;
  }

  // The loss after a step, with its gradient; infinite where a step is so long that logits overflow.
  double evaluate_next() {
    ++result_.evaluations;
    try {
      return loss_.evaluate(next_, &next_gradient_, run_, targets());
    } catch (const NonFiniteError&) {
      return std::numeric_limits<double>::infinity();
    }
  }

  // Keeps the maps that do best on the other passages.
  void look() {
    const double judged = judge_->evaluate(maps_, nullptr, run_);
    if (!(judged < result_.judged)) return;
    result_.judged = judged;
    result_.judged_maps = maps_;
  }

  // Makes one step to a lower loss. Returns false if the line search finds none.
  bool advance() {
    direction_ = gradient_;
    quasi_newton_.to_direction(direction_);
    const double slope = soft::inner(gradient_, direction_);
    if (!(slope < 0) || !std::isfinite(slope)) return false;
    double length = 1;
    for (int trial = 0; trial < most_trials; ++trial) {
      next_ = maps_ + length * direction_;
      if (!next_.allFinite()) {
        length *= 0.1;
        continue;
      }
      const double value = evaluate_next();
      if (value <= value_ + sufficient * length * slope) {
        accept(value);
        return true;
      }
      // The minimum of the parabola through both values and the slope, within bounds.
      const double best = -slope * length * length / (2 * (value - value_ - slope * length));
      length = std::isfinite(best) ? std::clamp(best, 0.1 * length, 0.5 * length) : 0.1 * length;
      // What is left to gain is less than rounding.
      const double gain = -slope * length;
      hidden_by_rounding_ = !targets() && gain < hidden * loss_.rounding();
      if (hidden_by_rounding_ || gain < std::numeric_limits<T>::epsilon() * 1e-2 * value_) {
        return false;
      }
    }
    return false;
  }

  // Tries again without the memory of earlier steps, which may be outdated.
  bool advance_afresh() {
    if (!quasi_newton_.remembers()) return false;
    quasi_newton_.forget();
    metric_->refresh(maps_);
    return advance();
  }

  void accept(double value) {
    quasi_newton_.learn(next_ - maps_, next_gradient_ - gradient_);
    next_.swap(maps_);
    next_gradient_.swap(gradient_);
    value_ = value;
  }

  bool finished(Index step) {
    if (run_.poll) run_.poll();
    const DescentLimits& limits = options_.limits;
    auto ending = limits.ending(step, result_.history, seconds(), first_);
    const bool depends_on_loss = ending == SoftStatus::Enough || ending == SoftStatus::Converged;
    if (depends_on_loss && may_be_rounding()) {
      compute_carefully(step);
      ending = value_ <= limits.enough ? SoftStatus::Enough : limits.used_up(step, seconds());
    }
    if (ending) result_.status = *ending;
    return ending.has_value();
  }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }

  const CompressLoss<T>& loss_;
  const CompressLoss<T>* judge_;
  const CompressOptions& options_;
  const Run& run_;
  Clock::time_point begun_ = Clock::now();
  std::unique_ptr<Metric> metric_;
  soft::QuasiNewton<double, Metric> quasi_newton_;
  Matrix<double> maps_, gradient_, direction_, next_, next_gradient_;
  double value_ = 0;
  Targets<T> targets_;  // empty as long as the loss is large enough to be computed without them
  bool hidden_by_rounding_ = false;
  Index first_ = 0;  // the first step that the tolerance compares
  CompressResult result_;
};

}  // namespace
}  // namespace compress

template <class T>
CompressResult fit_maps(const CompressLoss<T>& loss, const CompressLoss<T>* judge,
                        const CompressOptions& options, const Run& run) {
  options.limits.check();
  const int threads = run.thread_count(std::numeric_limits<int>::max());
  WorkerPool helpers(threads - 1);  // an evaluation may take less time than starting threads
  Run pooled{threads, run.poll};
  pooled.helpers = &helpers;
  return compress::Descent<T>(loss, judge, options, pooled).run();
}

template CompressResult fit_maps(const CompressLoss<float>&, const CompressLoss<float>*,
                                 const CompressOptions&, const Run&);
template CompressResult fit_maps(const CompressLoss<double>&, const CompressLoss<double>*,
                                 const CompressOptions&, const Run&);

}  // namespace headfit
