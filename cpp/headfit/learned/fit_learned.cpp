#include "headfit/learned/fit_learned.hpp"

#include <chrono>
#include <cmath>
#include <numeric>
#include <string>

#include "headfit/base/worker_pool.hpp"
#include "headfit/learned/annealing.hpp"
#include "headfit/learned/exact_queries.hpp"
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
  if (!(options.polished_share >= 0)) throw InputError("polished_share must not be negative");
  for (const Tolerances& stage : options.looser) stage.check();
  if (options.storage) check_storage(*options.storage);
  if (options.init_q.has_value() != options.init_k.has_value()) {
    throw InputError("a start needs both queries and keys");
  }
  if (options.init_q) check_start(target, *options.init_q, *options.init_k, options.dim);
}

class Seconds {
 public:
  double passed() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begun_ = Clock::now();
};

// The stages one after the other, and sums over all of them. Where one is stopped, the last one
// follows at once and takes no steps: its scan tells which rows miss the tolerances.
LearnedResult in_stages(const Target& target, const Tolerances& tolerances,
                        const LearnedOptions& options, const Seconds& clock, const Run& run) {
  LearnedResult last, sum;
  std::optional<LearnedStatus> ended;
  bool is_over = false;
  LearnedOptions stage = options;
  stage.storage.reset();
  if (options.progress) {
    stage.progress = [&](const LearnedScan& scan) {
      const bool goes_on =
          options.progress({sum.steps + scan.step, scan.rows_left, scan.worst_deficit});
      is_over |= !goes_on;
      return goes_on;
    };
  }
  for (std::size_t i = 0; i <= options.looser.size(); ++i) {
    const bool is_last = i == options.looser.size();
    if (ended && !is_last) continue;
    const auto stages = static_cast<Index>(options.looser.size() - i + 1);
    const Index left = std::max(Index(0), options.max_steps - sum.steps);
    stage.max_steps = (left + stages - 1) / stages;
    if (!is_last) stage.max_steps = std::min(stage.max_steps, options.stage_steps);
    if (ended) {
      stage.max_steps = 0;
      stage.progress = {};
    }
    if (is_last) stage.storage = options.storage;
    if (i > 0) stage.time_limit = std::max(0.0, options.time_limit - clock.passed());
    LearnedResult result =
        learned::Annealing(target, is_last ? tolerances : options.looser[i], stage, run).run();
    if (!ended) {
      sum.steps += result.steps;
      sum.scans += result.scans;
      sum.starts += result.starts;
      sum.quenches += result.quenches;
      sum.reheats += result.reheats;
      sum.roundings += result.roundings;
      sum.seconds += result.seconds;
    }
    sum.restarts += std::max(result.quenches - 1, Index(0)) + result.reheats;
    last = std::move(result);
    stage.init_q = heads_of(last.q);
    stage.init_k = heads_of(last.k);
    if (is_last) break;
    if (is_over) {
      ended = LearnedStatus::Stopped;  // also where this stage has met its tolerances
    } else if (last.status == LearnedStatus::TimeLimit) {
      ended = last.status;
    }
  }
  sum.status = ended.value_or(last.status);
  sum.q = std::move(last.q);
  sum.k = std::move(last.k);
  sum.failed_rows = std::move(last.failed_rows);
  sum.worst_deficit = last.worst_deficit;
  return sum;
}

// Gives the rows that are left exact queries. If there is no time for all of them, none gets one.
void polish(const Target& target, const Tolerances& tolerances, const LearnedOptions& options,
            const Seconds& clock, const Run& run, LearnedResult& result) {
  constexpr double overtime = 0.5;  // seconds that this may take after the time limit
  struct OutOfTime {};
  const double limit = std::max(options.time_limit, clock.passed() + overtime);
  const Run timed{run.threads, [&] {
    if (run.poll) run.poll();
    if (clock.passed() > limit) throw OutOfTime();
  }, run.helpers};
  const Interruptible here(timed.poll);
  const std::size_t before = result.failed_rows.size();
  try {
    const double most = learned::longest_query(options.max_norm, result.k);
    result.failed_rows = learned::exact_queries(target, tolerances, result.k, result.failed_rows,
                                                most, result.q, timed);
  } catch (const OutOfTime&) {  // these rows stay as they are
  }
  result.polished = static_cast<Index>(before - result.failed_rows.size());
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
  const Seconds clock;
  LearnedResult result = in_stages(target, tolerances, options, clock, pooled);
  const auto left = static_cast<double>(result.failed_rows.size());
  const bool are_few = left > 0 && left <= options.polished_share * static_cast<double>(target.n);
  const bool is_free = !options.storage && !tolerances.limits_logits();
  if (are_few && is_free && result.status != LearnedStatus::Stopped) {
    polish(target, tolerances, options, clock, pooled, result);
  }
  return result;
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

NarrowQueries narrow_queries(const Target& target, const NarrowOptions& options,
                             const GivenHead& head, const Run& run) {
  using namespace learned;
  const Storage& storage = options.storage;
  check_common(target, options.stored, run);
  check_storage(storage);
  check_start(target, head.q, head.k, head.q.cols);
  if (options.less.empty()) throw InputError("narrow queries need tolerances of exact ones");
  const Matrix<float> k = head.k[0];
  const double max_query = longest_query(options.max_norm, k);
  Matrix<float> exact = head.q[0];
  std::vector<Index> failed = rows_outside(target, options.less[0], heads_of(exact), head.k, run);
  for (const Tolerances& less : options.less) {
    failed = exact_queries(target, less, k, failed, max_query, exact, run);
  }
  if (!failed.empty()) return {std::move(exact), std::move(failed), false};
  Matrix<float> rounded = Matrix<float>::Zero(exact.rows(), exact.cols());
  std::vector<Index> rows(static_cast<std::size_t>(target.n));
  std::iota(rows.begin(), rows.end(), Index(0));
  const auto unit = static_cast<float>(storage.query_unit);
  for (std::size_t round = 0; round <= options.more.size(); ++round) {
    if (round > 0) {  // rows without a query for this reserve are not rounded again
      const Tolerances& more = options.more[round - 1];
      const auto without = exact_queries(target, more, k, rows, max_query, exact, run);
      std::vector<Index> others;
      std::ranges::set_difference(rows, without, std::back_inserter(others));
      rows = std::move(others);
    }
    const SomeRows part(target, rows);
    const Matrix<float> q =
        round_queries(part.view(), options.rounded, {heads_of(exact), head.k}, storage, run);
    for (const Index i : rows) rounded.row(i) = q.row(i);
    // As they will be stored: where no good rounding was found, numbers go to the nearest.
    const Matrix<float> stored = rounded.unaryExpr([&](float x) {
      return static_cast<float>(storage.format.rounded(static_cast<double>(x / unit))) * unit;
    });
    rows = rows_outside(target, options.stored, heads_of(stored), head.k, run);
    if (rows.empty()) break;
  }
  return {std::move(rounded), std::move(rows), true};
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
