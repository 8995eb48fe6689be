// Rung three: keys and queries found together, by annealed and preconditioned row
// steps on the feasibility loss of theory.md 3.3. The parts are in learned/.
#pragma once

#include <functional>
#include <limits>
#include <optional>

#include "headfit/base/threads.hpp"
#include "headfit/pattern/target.hpp"
#include "headfit/scores/source.hpp"

namespace headfit {

struct LearnedScan {
  Index step;
  Index rows_left;       // outside the tolerances
  double worst_deficit;  // by how much the worst row misses, in logit units
};

struct LearnedOptions {
  Index dim = 0;
  double leak = 0.05;
  double distortion = 0.1;
  std::uint64_t seed = 0;
  Index anneal_steps = 0;  // of the first anneal; 0: 500. One that was too quick is followed by
                           // one 2.5 times as long
  Index max_steps = 60000;  // over all anneals and reheats
  double time_limit = std::numeric_limits<double>::infinity();  // seconds
  double max_norm = 0;  // of max ||q|| max ||k||; 0: any
  // A start, both or neither, of at most `dim` columns: what is missing is drawn, small. The
  // first anneal then begins at the temperature of a reheat.
  std::optional<Heads<float>> init_q;
  std::optional<Heads<float>> init_k;
  // Called after every exact scan; false stops the fit.
  std::function<bool(const LearnedScan&)> progress;
};

enum class LearnedStatus { Met, StepLimit, TimeLimit, Stopped };

struct LearnedResult {
  LearnedStatus status = LearnedStatus::StepLimit;
  Matrix<float> q;  // logits are plain products q.k
  Matrix<float> k;
  std::vector<Index> failed_rows;  // rows that the last exact scan found outside the tolerances
  double worst_deficit = 0;
  Index steps = 0, scans = 0, anneals = 0, reheats = 0;
  double seconds = 0;
};

// `Met` allows for the rounding of the float32 scan, to first order; the certificate proper
// is a separate pass. Memory: about 20 (k + max(24, 4 k)) + 4 d (d + 6) bytes a row. The
// result does not depend on the number of threads.
LearnedResult fit_learned(const Target& target, const Mask& mask, const LearnedOptions& options,
                          const Run& run);

}  // namespace headfit
