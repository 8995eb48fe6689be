// The schedule: holds, quenches, reheats, and when to stop. The length of the steps is a
// temperature. Held where keys still change places, and quenched now and then, a fit ends soon
// after the keys have found theirs, however long that takes.
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
  struct OutOfTime {};  // thrown by the poll, in the middle of whatever takes long

  Run timed(const Run& run);
  Outcome search();
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }
  Outcome from_given_start();
  Outcome from_random_start(Index number, Index first_hold);
  double most_hits(Index steps, Index first_hold) const;
  Outcome hold(Index from, Index to);
  Outcome settle(float length, Index steps);
  Outcome anneal(float length, Index steps);
  Outcome stored(Outcome outcome);
  Outcome store();
  Outcome list_anew(bool hot = false);
  void scan(bool hot = false);
  bool must_stop();
  bool few_are_hard() const;

  const LearnedOptions& options_;
  const Clock::time_point begun_ = Clock::now();
  double limit_;  // seconds from then
  const Run run_;
  Clock::time_point polled_ = begun_;
  Requirements required_;
  const Recipe recipe_;
  Descent descent_;
  ScanSummary last_;  // of the last scan
  bool is_stopped_ = false;  // by who was told of it
  float reserve_ = first_reserve;  // before a rounding
  LearnedResult result_;
};

}  // namespace headfit::learned
