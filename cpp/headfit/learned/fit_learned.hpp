// Rung three: keys and queries found together, by annealed and preconditioned row
// steps on the feasibility loss of learned/gradient.hpp. The parts are in learned/.
#pragma once

#include <functional>
#include <limits>
#include <optional>

#include "headfit/base/number_format.hpp"
#include "headfit/base/threads.hpp"
#include "headfit/logits/source.hpp"
#include "headfit/pattern/target.hpp"

namespace headfit {

struct LearnedScan {
  Index step;
  Index rows_left;       // outside the tolerances, as far as the scan looked
  double worst_deficit;  // by how much the worst row misses, in logit units
};

struct LearnedOptions {
  Index dim = 0;
  double leak = 0.05;
  double distortion = 0.1;
  std::uint64_t seed = 0;
  Index first_hold = 300;  // steps before the first quench, but for one after a brief hold
  Index max_steps = 60000;  // in all
  double time_limit = std::numeric_limits<double>::infinity();  // seconds
  double max_norm = 0;  // of max ||q|| max ||k||; 0: any
  double max_logit = std::numeric_limits<double>::infinity();  // of |q.k|
  // What Q / query_unit and K are stored in; none: float32, in which the fit works.
  std::optional<NumberFormat> format;
  double query_unit = 1;
  // A start, both or neither, of at most `dim` columns: what is missing is drawn, small. A
  // random start follows one that fails.
  std::optional<Heads<float>> init_q;
  std::optional<Heads<float>> init_k;
  // Called after every scan; false stops the fit.
  std::function<bool(const LearnedScan&)> progress;
};

enum class LearnedStatus { Met, StepLimit, TimeLimit, Stopped };

struct LearnedResult {
  LearnedStatus status = LearnedStatus::StepLimit;
  Matrix<float> q;  // logits are plain products q.k
  Matrix<float> k;
  std::vector<Index> failed_rows;  // rows that an exact scan found outside the tolerances
  double worst_deficit = 0;
  Index steps = 0, scans = 0, starts = 0, quenches = 0, reheats = 0, roundings = 0;
  double seconds = 0;
};

// `Met` allows for the rounding of the float32 scan, to first order; the certificate proper
// is a separate pass. Memory: about 20 (k + max(24, 4 k)) + 4 d (d + 8) bytes a row. The
// result does not depend on the number of threads.
LearnedResult fit_learned(const Target& target, const Mask& mask, const LearnedOptions& options,
                          const Run& run);

// Queries and keys that somebody has, and what is asked of them.
struct GivenHead {
  Heads<float> q;
  Heads<float> k;
  double leak = 0.05;
  double distortion = 0.1;
  double max_logit = std::numeric_limits<double>::infinity();
};

// Queries near those given that `format` can hold, times `query_unit`, for keys that stay as they
// are: the errors of a row's coordinates cancel where its tolerances have it so, as far as a
// local search goes.
Matrix<float> round_queries(const Target& target, const Mask& mask, const GivenHead& head,
                            const NumberFormat& format, double query_unit, const Run& run);

// The loss that the fit descends, over every column, and its gradient: for tests, and for who
// wants another descent. Memory: O(n^2).
struct LossGradient {
  double loss = 0;
  Matrix<float> q;
  Matrix<float> k;
};
LossGradient feasibility_loss(const Target& target, const Mask& mask, const GivenHead& head,
                              const Run& run);

}  // namespace headfit
