#include "headfit/learned/fit_learned.hpp"

#include <cmath>

#include "headfit/base/worker_pool.hpp"
#include "headfit/descent/limits.hpp"
#include "headfit/learned/descent.hpp"

namespace headfit {

void Storage::check() const {
  if (!(std::isfinite(query_unit) && query_unit != 0)) {
    throw InputError("query_unit must be finite and nonzero; got ", query_unit);
  }
  if (!(max_norm >= 0)) {
    throw InputError("max_norm must not be negative; got ", max_norm);
  }
}

namespace {

void check_target(const Target& target, const Tolerances& tolerances, const Run& run) {
  tolerances.check();
  if (!(tolerances.distortion > 0)) {
    throw InputError("distortion must be positive to learn a head: descent meets no ratio exactly");
  }
  check_entries(target, run);
}

void check_head(const Target& target, const GivenHead& head, Index most_columns) {
  for (const auto* x : {&head.q, &head.k}) {
    const bool fits = x->count == 1 && x->rows == target.n && x->cols == head.q.cols;
    if (!fits || x->cols < 1 || x->cols > most_columns) {
      throw InputError("a start must have ", target.n, " rows and 1 to ", most_columns,
                       " columns, as many in queries as in keys");
    }
    if (!(*x)[0].allFinite()) throw NonFiniteError("a start must be finite");
  }
}

void check_options(const Target& target, const LearnedOptions& options) {
  const auto at_least = [](Index value, Index least, const char* name) {
    if (value < least) {
      throw InputError(name, " must be at least ", least, "; got ", value);
    }
  };
  if (options.dim < 1) throw InputError("dim must be positive; got ", options.dim);
  at_least(options.first_hold, 1, "first_hold");
  at_least(options.max_steps, 0, "max_steps");
  at_least(options.most_reheats, 0, "most_reheats");
  if (std::isnan(options.time_limit)) throw InputError("time_limit must be a number; got nan");
  if (!(options.max_norm >= 0)) {
    throw InputError("max_norm must not be negative; got ", options.max_norm);
  }
  if (!(options.polished_share >= 0)) throw InputError("polished_share must not be negative");
  for (const Tolerances& stage : options.looser) stage.check();
  if (options.storage) options.storage->check();
  if (options.start) check_head(target, *options.start, options.dim);
}

void count(const LearnedResult& stage, LearnedResult& sum) {
  sum.steps += stage.steps;
  sum.scans += stage.scans;
  sum.starts += stage.starts;
  sum.quenches += stage.quenches;
  sum.reheats += stage.reheats;
  sum.roundings += stage.roundings;
  sum.restarts += std::max(stage.quenches - 1, Index(0)) + stage.reheats;
  sum.seconds += stage.seconds;
}

// The stages one after the other, and sums over all of them. Where one is stopped, the last one
// follows at once and takes no steps: its scan tells which rows miss the tolerances.
LearnedResult in_stages(const Target& target, const Tolerances& tolerances,
                        const LearnedOptions& options, const Stopwatch& stopwatch, const Run& run) {
  LearnedResult head, sum;
  LearnedOptions stage = options;
  bool asked_to_stop = false;
  if (options.progress) {
    stage.progress = [&](const LearnedProgress& now) {
      asked_to_stop |= !options.progress({sum.steps + now.step, now.rows_left, now.worst_deficit});
      return !asked_to_stop;
    };
  }
  // Fits one of `stages` that are left.
  const auto fit = [&](const Tolerances& to, Index stages) {
    const Index left = std::max(Index(0), options.max_steps - sum.steps);
    stage.max_steps = std::min(stage.max_steps, (left + stages - 1) / stages);
    stage.time_limit = std::max(0.0, options.time_limit - stopwatch.seconds());
    head = learned::fit_stage(target, to, stage, run);
    stage.start = GivenHead{heads_of(head.q), heads_of(head.k)};
  };
  std::optional<LearnedStatus> ended;
  stage.storage.reset();
  auto stages = static_cast<Index>(options.looser.size()) + 1;
  for (const Tolerances& looser : options.looser) {
    stage.max_steps = options.stage_steps;
    fit(looser, stages--);
    count(head, sum);
    if (asked_to_stop) ended = LearnedStatus::Stopped;  // also where this stage has met its own
    if (!ended && head.status == LearnedStatus::TimeLimit) ended = head.status;
    if (ended) break;
  }
  stage.storage = options.storage;
  stage.max_steps = ended ? 0 : options.max_steps;
  if (ended) stage.progress = {};
  fit(tolerances, 1);
  if (!ended) count(head, sum);
  sum.status = ended.value_or(head.status);
  sum.q = std::move(head.q);
  sum.k = std::move(head.k);
  sum.failed_rows = std::move(head.failed_rows);
  sum.worst_deficit = head.worst_deficit;
  return sum;
}

// Gives the rows that are left exact queries. If there is no time for all of them, none gets one.
void polish(const Target& target, const Tolerances& tolerances, const LearnedOptions& options,
            const Stopwatch& stopwatch, const Run& run, LearnedResult& result) {
  struct OutOfTime {};
  const double limit =
      std::max(options.time_limit, stopwatch.seconds() + learned::Settings::overtime);
  const Run timed{run.threads, [&] {
    if (run.poll) run.poll();
    if (stopwatch.seconds() > limit) throw OutOfTime();
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

void learned::check_given(const Target& target, const Tolerances& tolerances, const GivenHead& head,
                          const Run& run) {
  check_target(target, tolerances, run);
  check_head(target, head, head.q.cols);
}

LearnedResult fit_learned(const Target& target, const Tolerances& tolerances,
                          const LearnedOptions& options, const Run& run) {
  check_target(target, tolerances, run);
  check_options(target, options);
  if (target.n == 0) {
    LearnedResult nothing;
    nothing.status = LearnedStatus::Met;
    nothing.q.resize(0, options.dim);
    nothing.k.resize(0, options.dim);
    return nothing;
  }
  // At small n a step takes a fraction of a millisecond, so all steps share one pool of threads.
  const PooledRun pooled(run, run.thread_count(target.n));
  const Stopwatch stopwatch;
  LearnedResult result = in_stages(target, tolerances, options, stopwatch, pooled);
  const auto left = static_cast<double>(result.failed_rows.size());
  const bool are_few = left > 0 && left <= options.polished_share * static_cast<double>(target.n);
  const bool is_free = !options.storage && !tolerances.limits_logits();
  if (are_few && is_free && result.status != LearnedStatus::Stopped) {
    polish(target, tolerances, options, stopwatch, pooled, result);
  }
  return result;
}

double memory_of_fit(double n, double k, double dim) {
  const double entries = k + learned::Settings::for_rows(0, k, 1).list_cap;
  const bool are_many = n >= static_cast<double>(LearnedOptions().many_rows_from);
  const double curvatures = (are_many ? 2 : 4) * dim * (dim + 1);
  // Queries, keys, the next queries, a snapshot of both, and the result, with their padding.
  const double heads = 7 * 4 * (dim + static_cast<double>(learned::lanes));
  return n * (20 * entries + 100 + curvatures + 8 * dim + heads);
}

}  // namespace headfit
