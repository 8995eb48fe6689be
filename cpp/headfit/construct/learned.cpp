#include "headfit/construct/learned.hpp"

#include <string>

#include "headfit/learned/annealing.hpp"

namespace headfit {
namespace {

void check(const Target& target, const LearnedOptions& options) {
  if (options.dim < 1) throw InputError("dim must be positive; got " + std::to_string(options.dim));
  if (!(options.leak > 0 && options.leak < 1)) {
    throw InputError("leak must lie between 0 and 1; got " + std::to_string(options.leak));
  }
  if (!(options.distortion > 0)) {
    throw InputError("distortion must be positive; got " + std::to_string(options.distortion));
  }
  if (!(options.max_norm >= 0)) {
    throw InputError("max_norm must not be negative; got " + std::to_string(options.max_norm));
  }
  if (options.init_q.has_value() != options.init_k.has_value()) {
    throw InputError("a start needs both queries and keys");
  }
  if (!options.init_q) return;
  for (const auto* start : {&*options.init_q, &*options.init_k}) {
    if (start->rows != target.n || start->cols < 1 || start->cols > options.dim ||
        start->cols != options.init_q->cols) {
      throw InputError("a start must have " + std::to_string(target.n) + " rows and 1 to " +
                       std::to_string(options.dim) + " columns, as many in queries as in keys");
    }
    if (!(*start)[0].allFinite()) throw NonFiniteError("a start must be finite");
  }
}

}  // namespace

LearnedResult fit_learned(const Target& target, const Mask& mask, const LearnedOptions& options,
                          const Run& run) {
  check(target, options);
  if (target.n == 0) {
    LearnedResult nothing;
    nothing.status = LearnedStatus::Met;
    nothing.q.resize(0, options.dim);
    nothing.k.resize(0, options.dim);
    return nothing;
  }
  // A step is a fraction of a millisecond at small n: its helpers must not be made anew.
  const int threads = run.thread_count(target.n);
  WorkerPool helpers(threads - 1);
  Run pooled{threads, run.poll};
  pooled.helpers = &helpers;
  return learned::Annealing(target, mask, options, pooled).run();
}

}  // namespace headfit
