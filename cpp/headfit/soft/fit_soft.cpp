#include "headfit/soft/fit_soft.hpp"

#include <cmath>
#include <string>

#include "headfit/base/worker_pool.hpp"
#include "headfit/soft/descent.hpp"

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
    throw InputError("a start must have " + std::to_string(target.rows()) + " queries and " +
                     std::to_string(target.cols()) + " keys of one size; got " +
                     std::to_string(q.rows) + " x " + std::to_string(q.cols) + " and " +
                     std::to_string(k.rows) + " x " + std::to_string(k.cols));
  }
  if (!q[0].allFinite() || !k[0].allFinite()) throw NonFiniteError("a start must be finite");
}

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
  const int threads = run.thread_count(target.rows());
  WorkerPool helpers(threads - 1);  // an evaluation may take less time than starting threads
  Run pooled{threads, run.poll};
  pooled.helpers = &helpers;
  const soft::TargetRows<T> rows(target, pooled);
  return soft::Descent<T>(rows, mask, options, pooled).run();
}

template <class T>
SoftLoss<T> soft_loss(const SoftTarget<T>& target, const Mask& mask, const Heads<T>& q,
                      const Heads<T>& k, const Run& run) {
  soft::check(target, q, k);
  const soft::TargetRows<T> rows(target, run);
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
