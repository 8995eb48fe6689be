// The descent of maps: quasi-Newton steps with a line search, and what they do about rounding.
#include <cmath>

#include "headfit/base/worker_pool.hpp"
#include "headfit/compress/compress.hpp"
#include "headfit/compress/metric.hpp"
#include "headfit/descent/line_search.hpp"

namespace headfit {
namespace compress {
namespace {

constexpr Index memory = 20;  // steps that the quasi-Newton method remembers
constexpr Index refresh_every = 10;  // steps that share one model of the Hessian
// Rounding by this share of the decrease that the tolerance compares is neglected.
constexpr double trusted = 0.1;
// Where a line search finds no lower loss, and what is left to gain is less than this share of the
// rounding, rows of the original are computed again from there on. The share is small because most
// rounding cancels in the sum over all rows.
constexpr double hidden = 0.05;
// The loss on the other passages is looked at after every one of the first steps, which change the
// maps most and may already fit what only the fitted passages have, and then every few steps.
constexpr Index first_looks = 10, look_every = 10;

// The descent of maps.
template <class T>
class MapDescent {
 public:
  MapDescent(const CompressLoss<T>& loss, const CompressLoss<T>* judge,
             const CompressOptions& options, const Run& run)
      : loss_(loss),
        judge_(judge),
        options_(options),
        run_(run),
        metric_(loss.moments(), loss.key_moments().centred),
        search_(options.start, memory, metric_) {}

  CompressResult run() {
    search_.evaluate_here(evaluation());  // which checks the maps
    result_.history.push_back(search_.value());
    result_.judged = std::numeric_limits<double>::infinity();
    for (Index step = 0; !finished(step);) {
      if (judge_ && (step < first_looks || step % look_every == 0)) look();
      if (step % refresh_every == 0) metric_.refresh(maps());
      if (advance() || (!hidden_by_rounding_ && advance_afresh())) {
        result_.history.push_back(search_.value());
        ++step;
      } else if (hidden_by_rounding_ || may_be_rounding()) {
        compute_carefully(step);
      } else {
        result_.status = DescentStatus::Converged;
        break;
      }
    }
    if (judge_) look();
    result_.maps = maps();
    result_.evaluations = search_.evaluations();
    result_.seconds = stopwatch_.seconds();
    return std::move(result_);
  }

 private:
  const Matrix<double>& maps() const { return search_.point(); }
  const Targets<T>* targets() const { return targets_.empty() ? nullptr : &targets_; }

  auto evaluation() const {
    return [this](const Matrix<double>& maps, Matrix<double>& gradient) {
      return loss_.evaluate(maps, &gradient, run_, targets());
    };
  }

  // Whether an end is not to be trusted: rounding may have changed the loss by what the tolerance
  // asks for.
  bool may_be_rounding() const {
    return !targets() && loss_.rounding() > trusted * options_.limits.tolerance * search_.value();
  }

  // From here on rows of the original are computed again in each evaluation.
  void compute_carefully(Index step) {
    const double before = search_.value();
    hidden_by_rounding_ = false;
    targets_ = loss_.all_targets(run_);
    search_.evaluate_here(evaluation());
    const double now = result_.history.back() = search_.value();
    const bool differs =
        std::abs(before - now) > trusted * options_.limits.tolerance * std::abs(now);
    if (differs) first_ = step;
  }

  // Keeps the maps that do best on the other passages.
  void look() {
    const double judged = judge_->evaluate(maps(), nullptr, run_);
    if (!(judged < result_.judged)) return;
    result_.judged = judged;
    result_.judged_maps = maps();
  }

  // Makes one step to a lower loss. Returns false if the line search finds none, or if what is left
  // to gain is less than rounding.
  bool advance() {
    return search_.advance(evaluation(), 0, [this](double gain) {
      hidden_by_rounding_ = !targets() && gain < hidden * loss_.rounding();
      return hidden_by_rounding_ ||
             gain < std::numeric_limits<T>::epsilon() * 1e-2 * search_.value();
    });
  }

  // Tries again without the memory of earlier steps, which may be outdated.
  bool advance_afresh() {
    if (!search_.remembers()) return false;
    search_.forget();
    metric_.refresh(maps());
    return advance();
  }

  bool finished(Index step) {
    stopwatch_.poll(run_);
    const DescentLimits& limits = options_.limits;
    auto ending = limits.ending(step, result_.history, stopwatch_.seconds(), first_);
    const bool depends_on_loss =
        ending == DescentStatus::Enough || ending == DescentStatus::Converged;
    if (depends_on_loss && may_be_rounding()) {
      compute_carefully(step);
      ending = search_.value() <= limits.enough ? DescentStatus::Enough
                                                : limits.used_up(step, stopwatch_.seconds());
    }
    if (ending) result_.status = *ending;
    return ending.has_value();
  }

  const CompressLoss<T>& loss_;
  const CompressLoss<T>* judge_;
  const CompressOptions& options_;
  const Run& run_;
  Stopwatch stopwatch_;
  KroneckerMetric metric_;
  descent::LineSearch<double, KroneckerMetric> search_;
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
  // An evaluation may take less time than starting threads.
  const PooledRun pooled(run, run.thread_count(std::numeric_limits<int>::max()));
  return compress::MapDescent<T>(loss, judge, options, pooled).run();
}

template CompressResult fit_maps(const CompressLoss<float>&, const CompressLoss<float>*,
                                 const CompressOptions&, const Run&);
template CompressResult fit_maps(const CompressLoss<double>&, const CompressLoss<double>*,
                                 const CompressOptions&, const Run&);

}  // namespace headfit
