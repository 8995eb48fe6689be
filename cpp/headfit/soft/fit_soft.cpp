#include "headfit/soft/fit_soft.hpp"

#include <cmath>
#include <utility>

#include "headfit/base/worker_pool.hpp"
#include "headfit/descent/line_search.hpp"
#include "headfit/soft/loss.hpp"
#include "headfit/soft/preconditioner.hpp"

namespace headfit {
namespace soft {
namespace {

template <class T>
void check(const SoftTarget<T>& target, const Heads<T>& q, const Heads<T>& k) {
  if (target.rows() < 1 || target.cols() < 1) throw InputError("the target must not be empty");
  if (target.attention && target.attention->sinks) {
    throw InputError("a soft fit takes no target with sinks: the rows of a fitted head sum to 1");
  }
  if (q.count != 1 || k.count != 1 || q.rows != target.rows() || k.rows != target.cols() ||
      q.cols != k.cols || q.cols < 1) {
    throw InputError("a start must have ", target.rows(), " queries and ", target.cols(),
                     " keys of one size; got ", q.rows, " x ", q.cols, " and ", k.rows, " x ",
                     k.cols);
  }
  if (!q[0].allFinite() || !k[0].allFinite()) throw NonFiniteError("a start must be finite");
}

constexpr Index memory = 12;  // steps that the quasi-Newton method remembers
constexpr Index refresh_every = 10;  // steps that share one curvature

// One matrix with the queries, and below them the keys.
template <class T>
Matrix<T> stacked(const Heads<T>& q, const Heads<T>& k) {
  Matrix<T> head(q.rows + k.rows, q.cols);
  head << q[0], k[0];
  return head;
}

// The descent of queries and keys to a dense target.
template <class T>
class HeadDescent {
 public:
  HeadDescent(TargetRows<T>& target, const Mask& mask, const SoftOptions<T>& options,
              const Run& run)
      : options_(options),
        run_(run),
        rows_(static_cast<double>(std::max<Index>(1, target.attending_rows()))),
        loss_(target, mask, options.init_q.cols, run),
        preconditioner_(target.rows() + target.cols(), target.rows(), options.init_q.cols, run),
        search_(stacked(options.init_q, options.init_k), memory, preconditioner_) {}

  SoftResult<T> run() {
    refresh();
    result_.history.push_back(search_.value() / rows_);
    for (Index step = 0; !finished(step); ++step) {
      if (!advance() && !advance_afresh()) {
        result_.status = DescentStatus::Converged;
        break;
      }
      result_.history.push_back(search_.value() / rows_);
    }
    result_.q = search_.point().topRows(loss_.queries());
    result_.k = search_.point().bottomRows(loss_.keys());
    result_.evaluations = search_.evaluations();
    result_.seconds = stopwatch_.seconds();
    return std::move(result_);
  }

 private:
  // Computes loss, gradient and curvature of the current head.
  void refresh() {
    search_.evaluate_here([&](const Matrix<T>& head, Matrix<T>& gradient) {
      return loss_.evaluate(head, gradient, &curvature_);
    });
    take_curvature();
  }

  void take_curvature() {
    preconditioner_.refresh(curvature_);
    ++result_.refreshes;
    age_ = 0;
  }

  // Makes one step to a lower loss. Returns false if the line search finds none. Every few steps the
  // curvature is computed with the loss of the first length that is tried, which is nearly always
  // taken.
  bool advance() {
    bool is_due = ++age_ >= refresh_every, with_curvature = false;
    const auto evaluate = [&](const Matrix<T>& head, Matrix<T>& gradient) {
      with_curvature = std::exchange(is_due, false);
      return loss_.evaluate(head, gradient, with_curvature ? &curvature_ : nullptr);
    };
    // By how much rounding may raise the sum over all rows.
    const double noise = static_cast<double>(std::numeric_limits<T>::epsilon()) *
                         (std::abs(search_.value()) + std::sqrt(rows_));
    if (!search_.advance(evaluate, noise, [](double) { return false; })) return false;
    if (with_curvature) take_curvature();
    return true;
  }

  // Tries again with a new curvature and without the memory of earlier steps, which may be outdated.
  bool advance_afresh() {
    if (age_ <= 1 && !search_.remembers()) return false;
    search_.forget();
    refresh();
    return advance();
  }

  bool finished(Index step) {
    stopwatch_.poll(run_);
    const auto ending = options_.limits.ending(step, result_.history, stopwatch_.seconds());
    if (ending) result_.status = *ending;
    return ending.has_value();
  }

  const SoftOptions<T>& options_;
  const Run& run_;
  Stopwatch stopwatch_;
  double rows_;
  Loss<T> loss_;
  Preconditioner<T> preconditioner_;
  descent::LineSearch<T, Preconditioner<T>> search_;
  Matrix<T> curvature_;
  Index age_ = 0;  // how many steps ago the curvature was computed
  SoftResult<T> result_;
};

}  // namespace
}  // namespace soft

template <class T>
void check_soft_target(const SoftTarget<T>& target, const Run& run) {
  const soft::TargetRows<T> rows(target, run);
}

template <class T>
SoftResult<T> fit_soft(const SoftTarget<T>& target, const Mask& mask, const SoftOptions<T>& options,
                       const Run& run) {
  soft::check(target, options.init_q, options.init_k);
  options.limits.check();
  // An evaluation may take less time than starting threads.
  const PooledRun pooled(run, run.thread_count(target.rows()));
  soft::TargetRows<T> rows(target, pooled);
  return soft::HeadDescent<T>(rows, mask, options, pooled).run();
}

template <class T>
SoftLoss<T> soft_loss(const SoftTarget<T>& target, const Mask& mask, const Heads<T>& q,
                      const Heads<T>& k, const Run& run) {
  soft::check(target, q, k);
  soft::TargetRows<T> rows(target, run);
  SoftLoss<T> out;
  out.loss = soft::Loss<T>(rows, mask, q.cols, run)
                 .evaluate(soft::stacked(q, k), out.gradient, &out.curvature);
  return out;
}

template void check_soft_target(const SoftTarget<float>&, const Run&);
template void check_soft_target(const SoftTarget<double>&, const Run&);
template SoftResult<float> fit_soft(const SoftTarget<float>&, const Mask&,
                                    const SoftOptions<float>&, const Run&);
template SoftResult<double> fit_soft(const SoftTarget<double>&, const Mask&,
                                     const SoftOptions<double>&, const Run&);
template SoftLoss<float> soft_loss(const SoftTarget<float>&, const Mask&, const Heads<float>&,
                                   const Heads<float>&, const Run&);
template SoftLoss<double> soft_loss(const SoftTarget<double>&, const Mask&, const Heads<double>&,
                                    const Heads<double>&, const Run&);

}  // namespace headfit
