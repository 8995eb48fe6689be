// The annealing schedule: when to hold, to quench, to reheat, and to stop. The length of the steps
// is the temperature. A hold keeps it where keys still change their arrangement; a quench cools
// quickly to see whether the arrangement is good enough. With a quench now and then, a fit ends
// soon after the keys have found a good arrangement, however long that takes.
#include <cmath>
#include <utility>

#include "headfit/descent/limits.hpp"
#include "headfit/learned/descent.hpp"
#include "headfit/learned/fit_learned.hpp"

namespace headfit::learned {
namespace {

Settings settings_for(const Requirements& required, const LearnedOptions& options,
                      double distortion) {
  const double k = required.mean_support();
  Settings settings = Settings::for_rows(required.n(), k, distortion);
  if (required.n() >= options.many_rows_from) {
    settings.for_many_rows(k, required.may_skip_columns());
  }
  return settings;
}

class Annealing {
 public:
  Annealing(const Target& target, const Tolerances& tolerances, const LearnedOptions& options,
            const Run& run);

  LearnedResult run();

 private:
  enum class Outcome { Met, RowsLeft, Stopped };
  struct OutOfTime {};  // thrown by the poll when the time limit is reached

  Run timed(const Run& run);

  Outcome search();
  Outcome from_given_start();
  Outcome from_random_start(Index number, Index first_hold);
  double quench_limit(Index steps, Index first_hold) const;
  Index next_count(Index steps, Index first_hold) const;
  Outcome hold(Index from, Index to, Columns columns);
  Outcome settle(float length, Index steps, Columns columns);
  Outcome anneal(float length, Index steps, Columns columns);
  Outcome mend();
  Outcome rounded_if_met(Outcome outcome);
  Outcome round_to_storage();

  Outcome scan_and_list(Columns columns);
  void scan(Columns columns);
  bool must_stop();
  bool few_are_hard() const;

  const LearnedOptions& options_;
  Stopwatch stopwatch_;
  double limit_;  // in seconds of the stopwatch
  const Run run_;
  Requirements required_;
  const Settings settings_;
  Descent descent_;
  RowCounts last_;  // what the last scan found
  Index clean_scans_ = 0;  // of a part of the columns, since the last one that found a row left
  bool is_stopped_ = false;  // the progress function has asked to stop
  float reserve_ = Settings::first_reserve;
  LearnedResult result_;
};

Annealing::Annealing(const Target& target, const Tolerances& tolerances,
                     const LearnedOptions& options, const Run& run)
    : options_(options),
      limit_(options.time_limit),
      run_(timed(run)),
      required_(target, tolerances),
      settings_(settings_for(required_, options, tolerances.distortion)),
      descent_(required_, options.dim, settings_, options.seed,
               static_cast<float>(common_radius(options.max_norm)), run_),
      last_{required_.n(), required_.n(), std::numeric_limits<float>::infinity()} {
  if (options.storage) required_.reserve(reserve_);
  descent_.scan_with(options.scanner);
}

// Steps and scans of many rows may take long, so the poll enforces the time limit in the midst of
// them.
Run Annealing::timed(const Run& run) {
  return {run.threads, [this, poll = run.poll] {
    if (poll) poll();
    if (stopwatch_.seconds() > limit_) throw OutOfTime();
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
    if (result_.status == LearnedStatus::TimeLimit)
      limit_ = stopwatch_.seconds() + Settings::overtime;
    // The report is about all columns, the limits as asked, and queries and keys as they are.
    const bool is_reserved = required_.reserved() > 0;
    required_.reserve(0);
    if (was_cut || is_reserved || !descent_.saw_all_columns()) last_ = descent_.scan(Columns::All);
  } catch (const OutOfTime&) {  // the report is what earlier scans found
  }
  result_.q = descent_.q().matrix();
  result_.k = descent_.k().matrix();
  for (Index i = 0; i < required_.n(); ++i) {
    if (!descent_.meets(i)) result_.failed_rows.push_back(i);
  }
  result_.worst_deficit = static_cast<double>(last_.worst_deficit);
  result_.seconds = stopwatch_.seconds();
  return std::move(result_);
}

Annealing::Outcome Annealing::search() {
  Outcome outcome = options_.start ? from_given_start() : Outcome::RowsLeft;
  Index first_hold = options_.first_hold;
  for (Index number = 0; outcome == Outcome::RowsLeft; ++number) {
    const Index roundings = result_.roundings;
    outcome = from_random_start(number, first_hold);
    if (options_.storage && outcome == Outcome::RowsLeft && result_.roundings == roundings) {
      reserve_ *= Settings::reserve_decay;
      required_.reserve(reserve_);
    }
    first_hold = Settings::next_first_hold(first_hold);
  }
  return outcome;
}

Annealing::Outcome Annealing::from_given_start() {
  descent_.start_from(options_.start->q[0], options_.start->k[0]);
  ++result_.starts;
  return settle(Settings::reheat_length, options_.warm_steps, Columns::Sampled);
}

// Holds the temperature, in longer and longer stretches, and quenches after those with few hits. The
// first stretches are the brief hold: if few columns are near the limits of their rows after it, the
// head has ample room, and a short quench succeeds at once. If a quench leaves many rows, it came
// too early: queries and keys go back to where they were before it, and the hold continues, with the
// averages of the quench.
Annealing::Outcome Annealing::from_random_start(Index number, Index first_hold) {
  descent_.start_randomly(static_cast<std::uint64_t>(number));
  ++result_.starts;
  const Index last = Settings::hold_span * first_hold;
  Index from = 0, to = std::min(Settings::first_check, first_hold);
  for (;;) {
    const bool is_brief = to <= settings_.brief_hold;
    const Columns columns = is_brief && settings_.keeps_lists ? Columns::InTurn : Columns::Sampled;
    Outcome outcome = hold(from, to, columns);
    if (outcome != Outcome::RowsLeft) return outcome;
    from = to;
    const double hits = descent_.hits_per_slot();
    if (to >= last || hits <= quench_limit(to, first_hold)) {
      const float length = settings_.held_length(to - 1);
      const bool is_ample = is_brief && hits <= Settings::ample_hits;
      const Snapshot held = descent_.snapshot();
      outcome = is_ample ? settle(length, settings_.ample_quench, columns)
                         : settle(length, Settings::quench_steps, Columns::Sampled);
      if (outcome != Outcome::RowsLeft || to >= last) return outcome;
      descent_.restore(held);
      to = std::max(to, std::min(settings_.brief_hold, first_hold));  // one quench of a brief hold
    }
    to = next_count(to, first_hold);
  }
}

// A quench after so many steps fails if the candidate lists have more hits per slot than this.
double Annealing::quench_limit(Index steps, Index first_hold) const {
  if (steps >= first_hold) return Settings::hits_to_quench;
  return steps < settings_.brief_hold ? Settings::early_hits : settings_.few_hits;
}

// After how many steps of a hold the hits are counted next.
Index Annealing::next_count(Index steps, Index first_hold) const {
  if (steps >= first_hold) return Settings::next_quench(steps);
  if (steps >= settings_.brief_hold) return first_hold;
  return std::min(steps + Settings::check_every, first_hold);
}

Annealing::Outcome Annealing::hold(Index from, Index to, Columns columns) {
  for (Index t = from; t < to; ++t) {
    if (t == from || t % Settings::scan_every == 0 || t < Settings::scan_always) {
      const Outcome outcome = scan_and_list(columns);
      if (outcome != Outcome::RowsLeft) return rounded_if_met(outcome);
    }
    descent_.step(settings_.held_length(t));
    ++result_.steps;
  }
  return Outcome::RowsLeft;
}

// A quench, and then, if few rows are hard, reheats. They begin with raised weights of the hard
// rows, which frees these. The weights go on growing from reheat to reheat, so many reheats free
// rows that a few do not.
Annealing::Outcome Annealing::settle(float length, Index steps, Columns columns) {
  const Index most_reheats = options_.most_reheats,
              surely = most_reheats / Settings::sure_part_of_reheats;
  ++result_.quenches;
  Outcome outcome = rounded_if_met(anneal(length, steps, columns));
  for (Index again = 0; outcome == Outcome::RowsLeft && again < most_reheats; ++again) {
    const Index before = last_.left;
    if (!few_are_hard()) break;
    outcome =
        rounded_if_met(anneal(Settings::reheat_length, Settings::reheat_steps, Columns::Sampled));
    ++result_.reheats;
    if (again + 1 >= surely && last_.left >= before) break;
  }
  return outcome;
}

// An anneal: the length of the steps falls exponentially. It ends early if mostly hard rows are
// left and the steps have become too short to free them, unless lists are kept: these may have
// missed what a row needs.
Annealing::Outcome Annealing::anneal(float first, Index steps, Columns columns) {
  const bool keeps_lists = columns == Columns::InTurn;
  Index next_scan = 0;
  Index listed_failures = required_.n();
  for (Index t = 0; t < steps; ++t) {
    const float length = settings_.falling_length(first, t, steps);
    if (t >= next_scan || listed_failures == 0) {
      const Outcome outcome = scan_and_list(columns);
      if (outcome != Outcome::RowsLeft) return outcome;
      const bool is_stuck = last_.hard > 0 && last_.left <= Settings::left_by_hard * last_.hard;
      const bool is_cold = length < Settings::too_short_to_free;
      if (is_stuck && is_cold && !keeps_lists) return Outcome::RowsLeft;
      if (few_are_hard()) descent_.reweight();
      const auto lifetime = static_cast<Index>(Settings::list_lifetime / length);
      next_scan =
          t + (keeps_lists ? std::clamp(lifetime, Index(1), Settings::kept_within)
                           : std::clamp(lifetime, Settings::scan_every, Settings::scan_within));
    }
    listed_failures = descent_.step(length);
    ++result_.steps;
  }
  const Outcome outcome = scan_and_list(Columns::All);
  return keeps_lists && outcome == Outcome::RowsLeft ? mend() : outcome;
}

// Mends the rows whose lists missed a column, in rounds of short steps with a scan of all
// columns after each.
Annealing::Outcome Annealing::mend() {
  const double most_left = Settings::mend_share * static_cast<double>(required_.n());
  const float last = std::min(Settings::mend_last_length, settings_.last_length);
  Outcome outcome = Outcome::RowsLeft;
  for (Index round = 0; round < Settings::most_mends && outcome == Outcome::RowsLeft; ++round) {
    if (static_cast<double>(last_.left) > most_left) break;
    for (Index t = 0; t < Settings::mend_steps; ++t) {
      descent_.step(settings_.falling_length(Settings::mend_length, t, Settings::mend_steps, last));
      ++result_.steps;
    }
    outcome = scan_and_list(Columns::All);
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
  ++result_.roundings;
  const Snapshot found = descent_.snapshot();
  descent_.round_keys(key_grid(*options_.storage));
  for (Index t = 0; t < Settings::settling_steps; ++t) {
    if (t % Settings::settling_scan_every == 0) {
      scan(Columns::All);
      if (must_stop()) return Outcome::Stopped;
    }
    descent_.step_queries(
        settings_.falling_length(Settings::settling_length, t, Settings::settling_steps));
    ++result_.steps;
  }
  required_.reserve(0);
  scan(Columns::All);
  const Grid grid = query_grid(*options_.storage, descent_.k());
  descent_.round_queries(grid, true);
  scan(Columns::All);
  for (Index round = 1; round < Settings::most_rounding_rounds && last_.left > 0; ++round) {
    descent_.round_queries(grid, false);
    scan(Columns::All);
  }
  if (last_.left == 0) return Outcome::Met;
  reserve_ = std::min(reserve_ * Settings::reserve_growth, Settings::reserve_cap);
  required_.reserve(reserve_);
  descent_.restore(found);
  scan(Columns::All);
  return must_stop() ? Outcome::Stopped : Outcome::RowsLeft;
}

// Scans the logits and fills the candidate lists, in the form that steps need.
Annealing::Outcome Annealing::scan_and_list(Columns columns) {
  scan(columns);
  if (last_.left == 0 && descent_.saw_all_columns()) return Outcome::Met;
  if (must_stop()) return Outcome::Stopped;
  descent_.transpose_lists();
  return Outcome::RowsLeft;
}

// Scans of a part of the columns that find no row left are followed by one of all columns: at once,
// or, where classes of columns take turns, when every class has had its turn.
void Annealing::scan(Columns columns) {
  last_ = descent_.scan(columns);
  clean_scans_ = last_.left == 0 && !descent_.saw_all_columns() ? clean_scans_ + 1 : 0;
  if (clean_scans_ >= (columns == Columns::InTurn ? descent_.column_step() : 1)) {
    last_ = descent_.scan(Columns::All);
    clean_scans_ = 0;
  }
  ++result_.scans;
  const LearnedProgress now{result_.steps, last_.left, static_cast<double>(last_.worst_deficit)};
  if (options_.progress && !options_.progress(now)) is_stopped_ = true;
}

bool Annealing::must_stop() {
  stopwatch_.poll(run_);
  if (is_stopped_) {
    result_.status = LearnedStatus::Stopped;
  } else if (stopwatch_.seconds() > limit_) {
    result_.status = LearnedStatus::TimeLimit;
  } else if (result_.steps >= options_.max_steps) {
    result_.status = LearnedStatus::StepLimit;
  } else {
    return false;
  }
  return true;
}

bool Annealing::few_are_hard() const {
  return static_cast<float>(last_.hard) < Settings::hard_share * static_cast<float>(required_.n());
}

}  // namespace

LearnedResult fit_stage(const Target& target, const Tolerances& tolerances,
                        const LearnedOptions& options, const Run& run) {
  return Annealing(target, tolerances, options, run).run();
}

}  // namespace headfit::learned
