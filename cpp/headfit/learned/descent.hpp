// The state of a fit and its two moves: a scan of all logits, or of a sample while they are hot,
// and a step of every query and every key. When to do which is the business of annealing.hpp.
#pragma once

#include <memory>

#include "headfit/learned/block_step.hpp"
#include "headfit/learned/gradient.hpp"
#include "headfit/learned/grid_rounding.hpp"

namespace headfit::learned {

// Scratch memory that outlives parallel regions; each worker of a region takes one.
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
  std::vector<std::unique_ptr<T>> all_;  // apart, so that no two share a cache line
  std::atomic<std::size_t> taken_{0};
};

// What a scan finds: the rows outside the tolerances, those that miss by much, and by how
// much the worst one does.
struct ScanSummary {
  Index rows_left = 0;
  Index hard_rows = 0;
  float worst_deficit = 0;
};

// Where queries and keys are.
struct Places {
  PaddedRows q, k;
};

class Descent {
 public:
  // Every query and every key stays within `radius`.
  Descent(const Requirements& required, const Mask& mask, Index dim, const Recipe& recipe,
          std::uint64_t seed, float radius, const Run& run);

  // Both forget all averages, lists and weights.
  void start_randomly(std::uint64_t attempt);
  void start_from(const MatrixView<float>& q, const MatrixView<float>& k);

  // Measures every row, and lists anew what is near its limit.
  ScanSummary scan() { return scan_some(1); }
  // The same, where so much is near the limits that a few columns in a row's stead will do.
  ScanSummary scan_hot();
  // Steps take the lists by column too.
  void transpose_lists() { lists_.transpose(run_); }
  // Raises the pull on the keys of rows that missed by much, and lets that of others decay.
  void reweight();
  // Keys go to a grid, their errors at the least cost for the rows that list them. Returns
  // nothing about how the rows fare: queries must follow.
  void round_keys(const Grid& grid);
  // Queries of the rows that do not meet the tolerances go to a grid, and search around there.
  void round_queries(const Grid& grid, bool all);
  Places places() const { return {q_, k_}; }
  // Weights start anew.
  void go_to(const Places& places);

  // Moves every coordinate by `length` on average. Returns how many rows missed before it,
  // judged by their lists alone.
  Index step(float length);
  // The same for queries alone.
  Index step_queries(float length);

  bool is_hot() const { return is_hot_; }
  // Columns near or above their row's limit at the last scan, for each place of a list.
  double hits_per_slot() const;
  const PaddedRows& q() const { return q_; }
  const PaddedRows& k() const { return k_; }
  bool meets(Index row) const { return checks_.deficit[static_cast<std::size_t>(row)] <= 0; }

 private:
  struct Worker {
    RowScratch row;
    LaneScratch lane;
    GridRounding grid;
  };

  void forget();
  ScanSummary scan_some(Index column_step);
  void query_block(Index block, float length, Worker& worker);
  void key_block(Index block, float length, Worker& worker);
  void move(PaddedRows& rows, Index first, Index count, const LaneScratch& lane) const;
  template <class Body>
  void for_blocks(Index count, const Body& body);

  const Requirements& required_;
  const Run& run_;
  const Mask mask_;
  const Philox random_;
  const float radius_;
  PaddedRows q_, k_;
  PaddedRows next_q_;  // queries move only after the keys have read them
  BlockSteps query_steps_, key_steps_;
  Lists lists_;
  Gradient gradient_;
  RowChecks checks_;
  std::vector<float> weight_;          // of each row's pull on the keys
  std::vector<Index> block_failures_;  // rows of a block that miss on their lists alone
  PerWorker<Worker> workers_;
  Index age_ = 0;
  Index scans_ = 0;
  bool is_hot_ = false;  // the last scan looked at some columns only
};

}  // namespace headfit::learned
