#include "headfit/learned/annealing.hpp"

#include <cmath>
#include <utility>

namespace headfit::learned {
namespace {

constexpr double overtime = 0.5;  // seconds that the last scan may take after the time limit

bool has_many_rows(const Requirements& required, const LearnedOptions& options) {
  return required.n() >= options.many_rows_from;
}

Recipe recipe_for(const Requirements& required, const Mask& mask, const LearnedOptions& options,
                  double distortion) {
  Recipe recipe = Recipe::for_rows(required.n(), required.mean_support(), distortion);
  if (!has_many_rows(required, options)) return recipe;
  recipe.short_curvature = true;
  if (may_skip_columns(required, mask)) recipe.keep_lists(required.mean_support());
  return recipe;
}

}  // namespace

Annealing::Annealing(const Target& target, const Tolerances& tolerances,
                     const LearnedOptions& options, const Run& run)
    : options_(options),
      limit_(options.time_limit),
      run_(timed(run)),
      required_(target, tolerances),
      recipe_(recipe_for(required_, target.mask, options, tolerances.distortion)),
      descent_(required_, target.mask, options.dim, recipe_, options.seed,
               static_cast<float>(common_radius(options.max_norm)), run_) {
  last_ = {required_.n(), required_.n(), std::numeric_limits<float>::infinity()};
  if (options.storage) required_.reserve(reserve_);
  if (options.scanner) {
    descent_.scan_with([&scanner = options.scanner, tolerances](const ScanRequest& request) {
      return scanner(tolerances, request);
    });
  }
}

// Steps and scans of many rows may take long, so the poll enforces the time limit in the midst of
// them.
Run Annealing::timed(const Run& run) {
  return {run.threads, [this, poll = run.poll] {
    if (poll) poll();
    if (seconds() > limit_) throw OutOfTime();
  }, run.helpers};
}

LearnedResult Annealing::run() {
  Interruptible here(run_.poll);
  bool was_cut = false;
  try {
    if (search() == Outcome::Met) result_.status = LearnedStatus::Met;
  } catch (const OutOfTime&) {
    result_.status = LearnedStatus::TimeLimit;
    was_cut = true;
  }
  try {
    if (result_.status == LearnedStatus::TimeLimit) limit_ = seconds() + overtime;
    if (was_cut || descent_.is_hot()) last_ = descent_.scan();  // so that the report is exact
  } catch (const OutOfTime&) {  // the report is what earlier scans found
  }
  result_.q = descent_.q().matrix();
  result_.k = descent_.k().matrix();
  for (Index i = 0; i < required_.n(); ++i) {
    if (!descent_.meets(i)) result_.failed_rows.push_back(i);
  }
  result_.worst_deficit = static_cast<double>(last_.worst_deficit);
  result_.seconds = seconds();
  return std::move(result_);
}

Annealing::Outcome Annealing::search() {
  Outcome outcome = options_.init_q ? from_given_start() : Outcome::RowsLeft;
  Index first_hold = options_.first_hold;
  for (Index number = 0; outcome == Outcome::RowsLeft; ++number) {
    const Index roundings = result_.roundings;
    outcome = from_random_start(number, first_hold);
    if (options_.storage && outcome == Outcome::RowsLeft && result_.roundings == roundings) {
      reserve_ *= reserve_decay;
      required_.reserve(reserve_);
    }
    first_hold = first_hold * 5 / 2;
  }
  return outcome;
}

Annealing::Outcome Annealing::from_given_start() {
  descent_.start_from((*options_.init_q)[0], (*options_.init_k)[0]);
  ++result_.starts;
  return settle(reheat_length, options_.warm_steps);
}

// Holds the temperature, in longer and longer stretches, and quenches after each of them. The first
// stretch is brief: if few columns are near the limits of their rows after it, the head has ample
// room and a quench succeeds at once. If a quench leaves many rows, it came too early: queries and
// keys go back to where they were before it, and the hold continues, with the averages of the
// quench.
Annealing::Outcome Annealing::from_random_start(Index number, Index first_hold) {
  descent_.start_randomly(static_cast<std::uint64_t>(number));
  ++result_.starts;
  const Index last = hold_span * first_hold;
  const auto longer = [&](Index to) {
    if (to >= first_hold) return to + (2 * to + 4) / 5;
    return to < recipe_.brief_hold ? std::min(to + check_every, first_hold) : first_hold;
  };
  Index from = 0;
  for (Index to = std::min(first_check, first_hold);; to = longer(to)) {
    keeps_lists_ = to <= recipe_.brief_hold && has_many_rows(required_, options_) &&
                   descent_.may_skip_columns();
    Outcome outcome = hold(from, to);
    if (outcome != Outcome::RowsLeft) return outcome;
    from = to;
    const double hits = descent_.hits_per_slot();
    if (hits > quench_limit(to, first_hold) && to < last) continue;
    const Snapshot held = descent_.snapshot();
    const bool is_ample = to <= recipe_.brief_hold && hits <= ample_hits;
    keeps_lists_ &= is_ample;
    outcome = settle(recipe_.held_length(to - 1), is_ample ? recipe_.ample_quench : quench_steps);
    if (outcome != Outcome::RowsLeft || to >= last) return outcome;
    descent_.restore(held);
    // A brief hold is quenched only once.
    to = std::max(to, std::min(recipe_.brief_hold, first_hold));
  }
}

// A quench after so many steps fails if the candidate lists have more hits per slot than this.
double Annealing::quench_limit(Index steps, Index first_hold) const {
  if (steps >= first_hold) return hits_to_quench;
  return steps < recipe_.brief_hold ? early_hits : recipe_.few_hits;
}

Annealing::Outcome Annealing::hold(Index from, Index to) {
  for (Index t = from; t < to; ++t) {
    if (t == from || t % scan_every == 0 || t < scan_always) {
      const Outcome outcome = scan_and_list(true);
      if (outcome != Outcome::RowsLeft) return rounded_if_met(outcome);
    }
    descent_.step(recipe_.held_length(t));
    ++result_.steps;
  }
  return Outcome::RowsLeft;
}

// A quench, and then, if few rows are hard, reheats. They begin with raised weights of the hard
// rows, which frees these. The weights go on growing from reheat to reheat, so many reheats free
// rows that a few do not.
Annealing::Outcome Annealing::settle(float length, Index steps) {
  const Index most_reheats = options_.most_reheats, surely = most_reheats / 2;
  ++result_.quenches;
  Outcome outcome = rounded_if_met(anneal(length, steps));
  keeps_lists_ = false;
  for (Index again = 0; outcome == Outcome::RowsLeft && again < most_reheats; ++again) {
    const Index before = last_.rows_left;
    if (!few_are_hard()) break;
    outcome = rounded_if_met(anneal(reheat_length, reheat_steps));
    ++result_.reheats;
    if (again + 1 >= surely && last_.rows_left >= before) break;
  }
  return outcome;
}

Annealing::Outcome Annealing::rounded_if_met(Outcome outcome) {
  return options_.storage && outcome == Outcome::Met ? round_to_storage() : outcome;
}

// Rounds a head that meets the tolerances with some reserve to the format it is stored in: first
// the keys, then queries that suit these keys. If rows miss the tolerances then, the head goes back
// to where it was.
Annealing::Outcome Annealing::round_to_storage() {
  constexpr Index settling = 200, between_scans = 10, most_rounds = 6;
  constexpr float first = 0.02f;
  ++result_.roundings;
  const Snapshot found = descent_.snapshot();
  descent_.round_keys(key_grid(*options_.storage));
  for (Index t = 0; t < settling; ++t) {
    if (t % between_scans == 0) {
      scan();
      if (must_stop()) return Outcome::Stopped;
    }
    descent_.step_queries(recipe_.falling_length(first, t, settling));
    ++result_.steps;
  }
  required_.reserve(0);
  scan();
  const Grid grid = query_grid(*options_.storage, descent_.k());
  descent_.round_queries(grid, true);
  scan();
  for (Index round = 1; round < most_rounds && last_.rows_left > 0; ++round) {
    descent_.round_queries(grid, false);
    scan();
  }
  if (last_.rows_left == 0) return Outcome::Met;
  reserve_ = std::min(reserve_ * reserve_growth, reserve_cap);
  required_.reserve(reserve_);
  descent_.restore(found);
  scan();
  return must_stop() ? Outcome::Stopped : Outcome::RowsLeft;
}

// An anneal: the length of the steps falls exponentially. It ends early if mostly hard rows are
// left and the steps have become too short to free them.
Annealing::Outcome Annealing::anneal(float first, Index steps) {
  constexpr float too_short = 2e-3f;
  Index next_scan = 0;
  Index listed_failures = required_.n();
  for (Index t = 0; t < steps; ++t) {
    const float length = recipe_.falling_length(first, t, steps);
    if (t >= next_scan || listed_failures == 0) {
      const Outcome outcome = scan_and_list(true);
      if (outcome != Outcome::RowsLeft) return outcome;
      const bool is_stuck = last_.hard_rows > 0 && last_.rows_left <= 2 * last_.hard_rows;
      if (length < too_short && is_stuck && !keeps_lists_) return Outcome::RowsLeft;
      if (few_are_hard()) descent_.reweight();
      const auto lifetime = static_cast<Index>(list_lifetime / length);
      next_scan = t + (keeps_lists_ ? std::clamp(lifetime, Index(1), kept_within)
                                    : std::clamp(lifetime, scan_every, scan_within));
    }
    listed_failures = descent_.step(length);
    ++result_.steps;
  }
  const Outcome outcome = scan_and_list();
  return keeps_lists_ && outcome == Outcome::RowsLeft ? mend() : outcome;
}

// Mends the rows whose lists missed a column, in rounds of short steps with a scan of all
// columns after each.
Annealing::Outcome Annealing::mend() {
  const double most_left = mend_share * static_cast<double>(required_.n());
  const float last = std::min(mend_last_length, recipe_.last_length);
  Outcome outcome = Outcome::RowsLeft;
  for (Index round = 0; round < most_mends && outcome == Outcome::RowsLeft; ++round) {
    if (static_cast<double>(last_.rows_left) > most_left) break;
    for (Index t = 0; t < mend_steps; ++t) {
      descent_.step(recipe_.falling_length(mend_length, t, mend_steps, last));
      ++result_.steps;
    }
    outcome = scan_and_list();
  }
  return outcome;
}

// Scans the logits and fills the candidate lists, in the form that steps need.
Annealing::Outcome Annealing::scan_and_list(bool hot) {
  scan(hot);
  if (last_.rows_left == 0 && !descent_.is_hot()) return Outcome::Met;
  if (must_stop()) return Outcome::Stopped;
  descent_.transpose_lists();
  return Outcome::RowsLeft;
}

// Hot scans that find no row left are followed by a scan of all columns: at once, or, where lists
// are kept, when every class of columns has had its turn.
void Annealing::scan(bool hot) {
  last_ = hot ? descent_.scan_hot(keeps_lists_) : descent_.scan();
  clean_scans_ = last_.rows_left == 0 && descent_.is_hot() ? clean_scans_ + 1 : 0;
  if (clean_scans_ >= (keeps_lists_ ? descent_.column_step() : 1)) {
    last_ = descent_.scan();
    clean_scans_ = 0;
  }
  ++result_.scans;
  const LearnedScan scan{result_.steps, last_.rows_left, static_cast<double>(last_.worst_deficit)};
  if (options_.progress && !options_.progress(scan)) is_stopped_ = true;
}

bool Annealing::must_stop() {
  const auto now = Clock::now();
  // A step may be too short for its own checkpoints to poll.
  if (now - polled_ > std::chrono::milliseconds(50)) {
    polled_ = now;
    run_.poll();
  }
  if (is_stopped_) {
    result_.status = LearnedStatus::Stopped;
  } else if (seconds() > limit_) {
    result_.status = LearnedStatus::TimeLimit;
  } else if (result_.steps >= options_.max_steps) {
    result_.status = LearnedStatus::StepLimit;
  } else {
    return false;
  }
  return true;
}

bool Annealing::few_are_hard() const {
  return static_cast<float>(last_.hard_rows) < hard_share * static_cast<float>(required_.n());
}

}  // namespace headfit::learned
