// The state of a fit and the two things done to it: scans of the logits, which fill the candidate
// lists, and steps of all queries and keys. While the temperature is high, a scan may look at a
// sample of the columns only. annealing.cpp decides when to do what.
#pragma once

#include <memory>

#include "headfit/learned/grid_rounding.hpp"
#include "headfit/learned/row_steps.hpp"
#include "headfit/random/philox.hpp"

namespace headfit::learned {

// Scratch memory that outlives parallel regions. Each worker of a region takes one piece of it.
template <class T>
class PerWorker {
 public:
  template <class Make>
  PerWorker(int count, const Make& make) {
    for (int w = 0; w < count; ++w) all_.push_back(std::make_unique<T>(make()));
  }
  void give_back_all() { taken_.store(0, std::memory_order_relaxed); }
  T& take() { return *all_[taken_.fetch_add(1, std::memory_order_relaxed)]; }

 private:
  std::vector<std::unique_ptr<T>> all_;  // allocated one by one, so that no two share a cache line
  std::atomic<std::size_t> taken_{0};
};

// How many rows miss the tolerances, how many of them by much ("hard" rows), and by how much the worst
// row misses them.
struct RowCounts {
  Index left = 0;
  Index hard = 0;
  float worst_deficit = 0;
};

// Which columns a scan looks at. With a mask or a bound on |logit| it looks at all of them.
enum class Columns {
  All,
  Sampled,  // a part of them, if so many are near the limits that lists overflow
  InTurn,  // one class after the other; lists keep what they hold (see ColumnSampling::keep)
};

// The queries and keys of a moment.
struct Snapshot {
  PaddedRows q, k;
};

// Draws random keys, and sets each query to twice the weighted mean of the keys on its support.
// Different attempts of one seed differ. A start with fewer columns is a part of one with more.
void random_start(const Requirements& required, const Philox& random, std::uint64_t attempt,
                  PaddedRows& q, PaddedRows& k);

// Copies the given columns, and fills missing columns with small random numbers.
void given_start(const MatrixView<float>& given_q, const MatrixView<float>& given_k,
                 const Philox& random, PaddedRows& q, PaddedRows& k);

class Descent {
 public:
  // The norm of every query and every key stays within `radius`.
  Descent(const Requirements& required, Index dim, const Settings& settings, std::uint64_t seed,
          float radius, const Run& run);

  // From now on scans are made by this function, unless it is empty.
  void scan_with(const Scanner& scanner) { scanner_ = scanner; }

  // Both starts reset all averages, candidate lists and weights.
  void start_randomly(std::uint64_t attempt);
  void start_from(const MatrixView<float>& q, const MatrixView<float>& k);

  // Measures every row, and fills its candidate list with the columns near its limit.
  RowCounts scan(Columns columns);
  // Prepares the candidate lists for steps, which need them by column too.
  void transpose_lists() { lists_.transpose(run_); }
  // Raises the weight, in the gradient of the keys, of rows that missed by much, and lets the
  // weights of other rows decay.
  void reweight();
  // Rounds the keys to a grid, such that the rounding errors cost the rows that list them as little
  // as possible. Queries must be rounded afterwards.
  void round_keys(const Grid& grid);
  // Rounds queries to a grid, all of them or those of rows that miss the tolerances, and improves
  // them by a local search on the grid.
  void round_queries(const Grid& grid, bool all);
  Snapshot snapshot() const { return {q_, k_}; }
  // Puts back the queries and keys, and resets the weights.
  void restore(const Snapshot& snapshot);

  // Moves every query and key, each coordinate by `length` on average. Returns how many rows missed
  // the tolerances before the step, as far as their candidate lists tell.
  Index step(float length);
  // The same, but moves only the queries.
  Index step_queries(float length);

  // Whether the last scan looked at all columns.
  bool saw_all_columns() const { return column_step_ == 1; }
  // Into how many classes the last scan divided the columns; each row looked at one of them.
  Index column_step() const { return column_step_; }
  // How many columns the last scan found near or above the limit of their row, divided by the
  // number of slots in the candidate lists.
  double hits_per_slot() const;
  const PaddedRows& q() const { return q_; }
  const PaddedRows& k() const { return k_; }
  bool meets(Index row) const { return scanned_.deficit[static_cast<std::size_t>(row)] <= 0; }

 private:
  struct Worker {
    RowScratch row;
    LaneScratch lane;
    NearestPlane nearest_plane;
    GridSearch grid_search;
  };

  void begin();
  void keep_within_radius(float* row) const;
  Index column_step_for(Columns columns) const;
  ScannedRows scanned_elsewhere(const ColumnSampling& sampling) const;
  RowCounts counts() const;
  void query_block(Index block, float length, Worker& worker);
  void key_block(Index block, float length, Worker& worker);
  void move(PaddedRows& rows, Index first, Index count, const LaneScratch& lane) const;
  template <class Body>
  void for_blocks(Index count, const Body& body);

  const Requirements& required_;
  const Run& run_;
  const std::uint64_t seed_;
  Scanner scanner_;
  const float radius_;
  PaddedRows q_, k_;
  PaddedRows next_q_;  // the moved queries: keys still need the old ones
  BlockSteps query_steps_, key_steps_;
  ScannedRows scanned_;
  CandidateLists lists_;
  Gradient gradient_;
  std::vector<float> weight_;  // of each row in the gradient of the keys
  std::vector<Index> block_failures_;  // rows of each block that miss, judged by their lists
  PerWorker<Worker> workers_;
  Index age_ = 0;
  Index scans_ = 0;
  Index column_step_ = 1;  // of the last scan
};

}  // namespace headfit::learned
