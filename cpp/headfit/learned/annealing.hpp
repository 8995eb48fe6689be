// The schedule: anneals, reheats, and when to stop.
#pragma once

#include <chrono>

#include "headfit/construct/learned.hpp"
#include "headfit/learned/descent.hpp"

namespace headfit::learned {

class Annealing {
 public:
  Annealing(const Target& target, const Mask& mask, const LearnedOptions& options, const Run& run);

  LearnedResult run();

 private:
  enum class Outcome { Met, Annealed, Stopped };
  using Clock = std::chrono::steady_clock;

  Outcome attempt(Index number, Index steps);
  Outcome anneal(float first, Index steps);
  Outcome store();
  bool is_warm(Index number) const { return number == 0 && options_.init_q.has_value(); }
  void scan();
  bool must_stop();
  bool few_are_hard() const;

  const LearnedOptions& options_;
  const Run& run_;
  const Clock::time_point begun_ = Clock::now();
  Clock::time_point polled_ = begun_;
  Wanted wanted_;
  const Recipe recipe_;
  Descent descent_;
  ScanSummary last_;  // of the last scan
  bool is_stopped_ = false;  // by who was told of it
  float reserve_ = first_reserve;  // before a rounding
  LearnedResult result_;
};

}  // namespace headfit::learned
