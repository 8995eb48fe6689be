#include "headfit/learned/descent.hpp"

#include <cmath>
#include <numeric>
#include <string>

#include "headfit/learned/start.hpp"

namespace headfit::learned {

Descent::Descent(const Requirements& required, const Mask& mask, Index dim, const Recipe& recipe,
                 std::uint64_t seed, float radius, const Run& run)
    : required_(required),
      run_(run),
      mask_(mask),
      seed_(seed),
      random_(seed),
      radius_(radius),
      q_(required.n(), dim),
      k_(q_),
      next_q_(q_),
      query_steps_(required.n(), dim, recipe),
      key_steps_(query_steps_),
      lists_(required, recipe.list_cap),
      gradient_(required, lists_),
      checks_(required.n()),
      weight_(static_cast<std::size_t>(required.n())),
      block_failures_(static_cast<std::size_t>(query_steps_.blocks())),
      workers_(run.thread_count(required.n()), [&] {
        return Worker{RowScratch(dim, required.largest_support()), LaneScratch(dim),
                      GridRounding(dim, required.largest_support() + recipe.list_cap)};
      }) {}

void Descent::start_randomly(std::uint64_t attempt) {
  random_start(required_, random_, attempt, q_, k_);
  forget();
}

void Descent::start_from(const MatrixView<float>& q, const MatrixView<float>& k) {
  given_start(q, k, random_, q_, k_);
  forget();
}

void Descent::forget() {
  query_steps_.forget();
  key_steps_.forget();
  lists_.forget();
  std::fill(weight_.begin(), weight_.end(), 1.0f);
  age_ = 0;
}

ScanSummary Descent::scan_hot(bool keep) {
  if (!may_skip_columns()) return scan();
  const Index classes = std::max(required_.n() / fewest_rows_per_class, Index(1));
  const Index least = keep ? std::min(kept_column_step, classes) : 1;
  const Index most = keep ? classes : std::min(classes, largest_column_step);
  return scan_columns(std::clamp(static_cast<Index>(hits_per_slot()), least, most), keep);
}

double Descent::hits_per_slot() const {
  double hits = 0;
  for (Index i = 0; i < required_.n(); ++i) hits += static_cast<double>(lists_.hits(i));
  return hits / static_cast<double>(required_.n() * lists_.cap());
}

ScanSummary Descent::scan_columns(Index column_step, bool keep) {
  if (scanner_) {
    ask_scanner(column_step, keep);
  } else {
    scan_near({required_, q_, k_, random_, scans_, lists_, checks_, column_step, keep}, mask_,
              run_);
  }
  ++scans_;
  column_step_ = column_step;
  ScanSummary summary;
  for (const float deficit : checks_.deficit) {
    summary.rows_left += !(deficit <= 0);
    summary.hard_rows += deficit > hard_deficit;
    summary.worst_deficit = std::max(summary.worst_deficit, deficit);
  }
  return summary;
}

void Descent::ask_scanner(Index column_step, bool keep) {
  const Index n = required_.n(), cap = lists_.cap();
  std::vector<Index> hits(static_cast<std::size_t>(n));
  for (Index i = 0; i < n; ++i) hits[static_cast<std::size_t>(i)] = lists_.hits(i);
  std::vector<Column> kept;
  std::vector<Index> kept_counts;
  if (keep) {
    kept = lists_.all_others();
    for (Index i = 0; i < n; ++i) kept_counts.push_back(lists_.listed(i));
  }
  const ScannedRows found = scanner_({q_.heads(), k_.heads(), hits, seed_, scans_, column_step,
                                      lists_.cap(), required_.reserved(), kept, kept_counts});
  const ScannedRows expected(n, lists_.cap());
  if (found.columns.size() != expected.columns.size() || found.listed.size() != hits.size() ||
      found.hits.size() != hits.size() || found.deficit.size() != hits.size() ||
      found.rounding.size() != hits.size()) {
    throw InputError("a scan must find something about each of the " + std::to_string(n) + " rows");
  }
  for (Index i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (found.listed[at] < 0 || found.listed[at] > cap) {
      throw InputError("a scan must list at most " + std::to_string(cap) + " columns; got " +
                       std::to_string(found.listed[at]) + " in row " + std::to_string(i));
    }
    const Column* columns = found.columns.data() + i * cap;
    for (Index c = 0; c < found.listed[at]; ++c) {
      if (columns[c] < 0 || columns[c] >= n) {
        throw InputError("a scan must list columns of A; got " + std::to_string(columns[c]));
      }
    }
    std::copy_n(columns, found.listed[at], lists_.others(i));
    lists_.set_others(i, found.listed[at], found.hits[at]);
  }
  checks_.deficit = found.deficit;
  checks_.rounding = found.rounding;
}

// A row whose query has shrunk towards zero pulls too weakly on the keys to ever become feasible by
// itself, so the weights of hard rows grow.
void Descent::reweight() {
  for (std::size_t i = 0; i < weight_.size(); ++i) {
    weight_[i] = checks_.deficit[i] > hard_deficit
                     ? std::min(weight_[i] * weight_growth, weight_cap)
                     : std::max(weight_[i] / weight_growth, 1.0f);
  }
}

template <class Body>
void Descent::for_blocks(Index count, const Body& body) {
  workers_.give_back_all();
  parallel_tasks(count, run_, [&] {
    return [&body, &worker = workers_.take()](Index block) { body(block, worker); };
  });
}

Index Descent::step(float length) {
  ++age_;
  for_blocks(query_steps_.blocks(), [&](Index b, Worker& w) { query_block(b, length, w); });
  for_blocks(key_steps_.blocks(), [&](Index b, Worker& w) { key_block(b, length, w); });
  q_.swap(next_q_);
  return std::accumulate(block_failures_.begin(), block_failures_.end(), Index(0));
}

Index Descent::step_queries(float length) {
  ++age_;
  for_blocks(query_steps_.blocks(), [&](Index b, Worker& w) { query_block(b, length, w); });
  q_.swap(next_q_);
  return std::accumulate(block_failures_.begin(), block_failures_.end(), Index(0));
}

void Descent::restore(const Snapshot& snapshot) {
  q_ = snapshot.q;
  k_ = snapshot.k;
  std::fill(weight_.begin(), weight_.end(), 1.0f);
}

void Descent::round_keys(const Grid& grid) {
  // Queries first: they store the curvature weights of their entries, which keys sum.
  for_blocks(required_.n(), [&](Index i, Worker& w) {
    gradient_.query(i, q_, k_, 1.0f, checks_.rounding[static_cast<std::size_t>(i)], w.row);
  });
  for_blocks(required_.n(), [&](Index j, Worker& w) {
    gradient_.key(j, q_, w.row);
    w.grid.nearest_plane(w.row.sums, grid, k_.row(j));
  });
}

void Descent::round_queries(const Grid& grid, bool all) {
  for_blocks(required_.n(), [&](Index i, Worker& w) {
    if (!all && meets(i)) return;
    const float rounding = checks_.rounding[static_cast<std::size_t>(i)];
    gradient_.query(i, q_, k_, 1.0f, rounding, w.row);
    if (all) w.grid.nearest_plane(w.row.sums, grid, q_.row(i));
    w.grid.improve(required_, lists_, i, grid, k_, rounding, q_.row(i));
  });
}

void Descent::query_block(Index block, float length, Worker& worker) {
  const Index first = block * lanes;
  const Index count = std::min(lanes, required_.n() - first);
  Index failures = 0;
  for (Index lane = 0; lane < count; ++lane) {
    const Index i = first + lane;
    const auto at = static_cast<std::size_t>(i);
    const auto state = gradient_.query(i, q_, k_, weight_[at], checks_.rounding[at], worker.row);
    failures += !state.meets;
    worker.lane.take(q_.dim(), lane, worker.row.sums);
    std::copy_n(q_.row(i), q_.width(), next_q_.row(i));
  }
  block_failures_[static_cast<std::size_t>(block)] = failures;
  query_steps_.solve(block, length, age_, worker.lane);
  move(next_q_, first, count, worker.lane);
}

void Descent::key_block(Index block, float length, Worker& worker) {
  const Index first = block * lanes;
  const Index count = std::min(lanes, required_.n() - first);
  for (Index lane = 0; lane < count; ++lane) {
    gradient_.key(first + lane, q_, worker.row);
    worker.lane.take(k_.dim(), lane, worker.row.sums);
  }
  key_steps_.solve(block, length, age_, worker.lane);
  move(k_, first, count, worker.lane);
}

// Moves rows by their steps, and those that leave the ball back to its nearest point.
void Descent::move(PaddedRows& rows, Index first, Index count, const LaneScratch& lane) const {
  for (Index l = 0; l < count; ++l) {
    float* row = rows.row(first + l);
    for (Index f = 0; f < rows.dim(); ++f) {
      row[f] -= lane.step[static_cast<std::size_t>(f * lanes + l)];
    }
    if (radius_ == std::numeric_limits<float>::infinity()) continue;
    const float norm = std::sqrt(dot(row, row, rows.width()));
    if (norm > radius_) {
      for (Index f = 0; f < rows.dim(); ++f) row[f] *= radius_ / norm;
    }
  }
}

}  // namespace headfit::learned
