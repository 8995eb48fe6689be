#include "headfit/learned/fit_learned.hpp"

#include <cmath>
#include <string>

#include "headfit/base/worker_pool.hpp"
#include "headfit/learned/annealing.hpp"
#include "headfit/learned/start.hpp"

namespace headfit {
namespace {

void check_common(const Target& target, const Tolerances& tolerances, const Run& run) {
  tolerances.check();
  if (!(tolerances.distortion > 0)) {
    throw InputError("distortion must be positive to learn a head: descent meets no ratio exactly");
  }
  check_entries(target, run);
}

void check_start(const Target& target, const Heads<float>& q, const Heads<float>& k, Index dim) {
  for (const auto* start : {&q, &k}) {
    const bool fits = start->count == 1 && start->rows == target.n && start->cols == q.cols;
    if (!fits || start->cols < 1 || start->cols > dim) {
      throw InputError("a start must have " + std::to_string(target.n) + " rows and 1 to " +
                       std::to_string(dim) + " columns, as many in queries as in keys");
    }
    if (!(*start)[0].allFinite()) throw NonFiniteError("a start must be finite");
  }
}

void check_storage(const Storage& storage) {
  if (!(std::isfinite(storage.query_unit) && storage.query_unit != 0)) {
    throw InputError("query_unit must be finite and nonzero; got " +
                     std::to_string(storage.query_unit));
  }
  if (!(storage.max_norm >= 0)) {
    throw InputError("max_norm must not be negative; got " + std::to_string(storage.max_norm));
  }
}

void check_options(const Target& target, const LearnedOptions& options) {
  const auto at_least = [](Index value, Index least, const char* name) {
    if (value < least) {
      throw InputError(std::string(name) + " must be at least " + std::to_string(least) + "; got " +
                       std::to_string(value));
    }
  };
  if (options.dim < 1) throw InputError("dim must be positive; got " + std::to_string(options.dim));
  at_least(options.first_hold, 1, "first_hold");
  at_least(options.max_steps, 0, "max_steps");
  at_least(options.most_reheats, 0, "most_reheats");
  if (std::isnan(options.time_limit)) throw InputError("time_limit must be a number; got nan");
  if (!(options.max_norm >= 0)) {
    throw InputError("max_norm must not be negative; got " + std::to_string(options.max_norm));
  }
  if (options.storage) check_storage(*options.storage);
  if (options.init_q.has_value() != options.init_k.has_value()) {
    throw InputError("a start needs both queries and keys");
  }
  if (options.init_q) check_start(target, *options.init_q, *options.init_k, options.dim);
}

}  // namespace

LearnedResult fit_learned(const Target& target, const Tolerances& tolerances,
                          const LearnedOptions& options, const Run& run) {
  check_common(target, tolerances, run);
  check_options(target, options);
  if (target.n == 0) {
    LearnedResult nothing;
    nothing.status = LearnedStatus::Met;
    nothing.q.resize(0, options.dim);
    nothing.k.resize(0, options.dim);
    return nothing;
  }
  // At small n a step takes a fraction of a millisecond, so all steps share one pool of threads.
  const int threads = run.thread_count(target.n);
  WorkerPool helpers(threads - 1);
  Run pooled{threads, run.poll};
  pooled.helpers = &helpers;
  return learned::Annealing(target, tolerances, options, pooled).run();
}

double memory_of_fit(double n, double k, double dim) {
  const double entries = k + learned::Recipe::for_rows(0, k, 1).list_cap;
  const bool are_many = n >= static_cast<double>(LearnedOptions().many_rows_from);
  const double curvatures = (are_many ? 2 : 4) * dim * (dim + 1);
  // Queries, keys, the next queries, a snapshot of both, and the result, with their padding.
  const double heads = 7 * 4 * (dim + static_cast<double>(learned::lanes));
  return n * (20 * entries + 100 + curvatures + 8 * dim + heads);
}

Matrix<float> round_queries(const Target& target, const Tolerances& tolerances,
                            const GivenHead& head, const Storage& storage, const Run& run) {
  using namespace learned;
  check_common(target, tolerances, run);
  check_storage(storage);
  check_start(target, head.q, head.k, head.q.cols);
  if (target.n == 0) return {};
  constexpr int most_rounds = 6;
  const Requirements required(target, tolerances);
  const std::uint64_t seed = 0;  // for the columns that scans draw
  const Recipe recipe = Recipe::for_rows(target.n, required.mean_support(), tolerances.distortion);
  constexpr float unbounded = std::numeric_limits<float>::infinity();
  Descent descent(required, target.mask, head.q.cols, recipe, seed, unbounded, run);
  descent.start_from(head.q[0], head.k[0]);
  descent.scan();
  const Grid grid = query_grid(storage, descent.k());
  descent.round_queries(grid, true);
  for (int round = 1; descent.scan().rows_left > 0 && round < most_rounds; ++round) {
    descent.round_queries(grid, false);
  }
  return descent.q().matrix();
}

LossGradient feasibility_loss(const Target& target, const Tolerances& tolerances,
                              const GivenHead& head, const Run& run) {
  using namespace learned;
  check_common(target, tolerances, run);
  check_start(target, head.q, head.k, head.q.cols);
  const Requirements required(target, tolerances);
  PaddedRows q(target.n, head.q.cols);
  PaddedRows k(q);
  const Philox random(0);  // never drawn from, since the lists have a place for every column
  given_start(head.q[0], head.k[0], random, q, k);
  Lists lists(required, static_cast<int>(target.n + target.n % 2));
  RowChecks checks(target.n);
  scan_near({required, q, k, random, 0, lists, checks}, target.mask, run);
  lists.transpose(run);
  Gradient gradient(required, lists);
  RowScratch scratch(q.dim(), required.largest_support());
  LossGradient result{0, Matrix<float>(target.n, q.dim()), Matrix<float>(target.n, q.dim())};
  for (Index i = 0; i < target.n; ++i) {
    const auto state =
        gradient.query(i, q, k, 1.0f, checks.rounding[static_cast<std::size_t>(i)], scratch);
    result.loss += static_cast<double>(state.loss);
    for (Index f = 0; f < q.dim(); ++f) result.q(i, f) = scratch.sums.gradient(f);
  }
  for (Index j = 0; j < target.n; ++j) {
    gradient.key(j, q, scratch);
    for (Index f = 0; f < q.dim(); ++f) result.k(j, f) = scratch.sums.gradient(f);
  }
  return result;
}

}  // namespace headfit
