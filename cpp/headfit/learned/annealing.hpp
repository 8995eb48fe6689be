// The annealing schedule: when to hold, to quench, to reheat, and to stop. The length of the steps
// is the temperature. A hold keeps it where keys still change their arrangement; a quench cools
// quickly to see whether the arrangement is good enough. With a quench now and then, a fit ends
// soon after the keys have found a good arrangement, however long that takes.
#pragma once

#include <chrono>

#include "headfit/learned/descent.hpp"
#include "headfit/learned/fit_learned.hpp"

namespace headfit::learned {

class Annealing {
 public:
  Annealing(const Target& target, const Tolerances& tolerances, const LearnedOptions& options,
            const Run& run);

  LearnedResult run();

 private:
  enum class Outcome { Met, RowsLeft, Stopped };
  using Clock = std::chrono::steady_clock;
  struct OutOfTime {};  // thrown by the poll when the time limit is reached

  Run timed(const Run& run);
  Outcome search();
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }
  Outcome from_given_start();
  Outcome from_random_start(Index number, Index first_hold);
  double quench_limit(Index steps, Index first_hold) const;
  Outcome hold(Index from, Index to);
  Outcome settle(float length, Index steps);
  Outcome anneal(float length, Index steps);
  Outcome mend();
  Outcome rounded_if_met(Outcome outcome);
  Outcome round_to_storage();
  Outcome scan_and_list(bool hot = false);
  void scan(bool hot = false);
  bool must_stop();
  bool few_are_hard() const;

  const LearnedOptions& options_;
  const Clock::time_point begun_ = Clock::now();
  double limit_;  // in seconds since begun_
  const Run run_;
  Clock::time_point polled_ = begun_;
  Requirements required_;
  const Recipe recipe_;
  Descent descent_;
  ScanSummary last_;  // what the last scan found
  bool keeps_lists_ = false;  // whether hot scans keep what the candidate lists hold
  Index clean_scans_ = 0;  // hot scans since the last one that found a row left
  bool is_stopped_ = false;  // the progress function has asked to stop
  float reserve_ = first_reserve;  // see recipe.hpp
  LearnedResult result_;
};

}  // namespace headfit::learned
