#include "headfit/learned/descent.hpp"

#include <cmath>
#include <numbers>
#include <numeric>

#include "headfit/base/checkpoint.hpp"

namespace headfit::learned {
namespace {

// Random streams of the seed. Scans draw from the streams below these, which are numbered by rows.
constexpr std::uint64_t key_stream = std::uint64_t(1) << 40;
constexpr std::uint64_t query_stream = std::uint64_t(2) << 40;

// The normal number at a place of the stream. The method of Box and Muller makes two normal numbers
// from two random words.
float normal(const Philox& random, std::uint64_t major, std::uint64_t attempt, Index place) {
  const auto words = random(major, attempt << 32 | static_cast<std::uint64_t>(place / 4));
  const auto unit = [&](std::size_t w) { return (static_cast<double>(words[w]) + 0.5) * 0x1p-32; };
  const auto pair = static_cast<std::size_t>(place % 4 / 2 * 2);
  const double radius = std::sqrt(-2 * std::log(unit(pair)));
  const double angle = 2 * std::numbers::pi * unit(pair + 1);
  return static_cast<float>(radius * (place % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

void fill_rows(const MatrixView<float>& given, const Philox& random, std::uint64_t stream,
               PaddedRows& rows) {
  Checkpoints checkpoints;
  for (Index i = 0; i < rows.rows(); ++i) {
    float* row = rows.row(i);
    const std::uint64_t place = stream + static_cast<std::uint64_t>(i);
    for (Index f = 0; f < rows.dim(); ++f) {
      row[f] = f < given.cols() ? given(i, f)
                                : Settings::missing_column_deviation * normal(random, place, 0, f);
    }
    checkpoints.after(32 * rows.dim());
  }
}

}  // namespace

void random_start(const Requirements& required, const Philox& random, std::uint64_t attempt,
                  PaddedRows& q, PaddedRows& k) {
  Checkpoints checkpoints;
  for (Index j = 0; j < k.rows(); ++j) {
    for (Index f = 0; f < k.dim(); ++f) {
      k.row(j)[f] = normal(random, key_stream + static_cast<std::uint64_t>(j), attempt, f);
    }
    checkpoints.after(32 * k.dim());
  }
  q.clear();
  for (Index i = 0; i < q.rows(); ++i) {
    const auto columns = required.support(i);
    const auto weights = required.target().row_weights(i);
    for (std::size_t a = 0; a < columns.size(); ++a) {
      add_scaled(static_cast<float>(2 * weights[a]), k.row(columns[a]), q.row(i), q.width());
      checkpoints.after(q.width());
    }
  }
}

void given_start(const MatrixView<float>& given_q, const MatrixView<float>& given_k,
                 const Philox& random, PaddedRows& q, PaddedRows& k) {
  fill_rows(given_q, random, query_stream, q);
  fill_rows(given_k, random, key_stream, k);
}

Descent::Descent(const Requirements& required, Index dim, const Settings& settings,
                 std::uint64_t seed, float radius, const Run& run)
    : required_(required),
      run_(run),
      seed_(seed),
      radius_(radius),
      q_(required.n(), dim),
      k_(q_),
      next_q_(q_),
      query_steps_(required.n(), dim, settings),
      key_steps_(query_steps_),
      scanned_(0, required.n(), settings.list_cap),
      lists_(required, scanned_),
      gradient_(required, lists_),
      weight_(static_cast<std::size_t>(required.n())),
      block_failures_(static_cast<std::size_t>(query_steps_.blocks())),
      workers_(run.thread_count(required.n()), [&] {
        return Worker{RowScratch(dim, required.largest_support()), LaneScratch(dim),
                      NearestPlane(dim),
                      GridSearch(required.largest_support() + settings.list_cap)};
      }) {}

void Descent::start_randomly(std::uint64_t attempt) {
  random_start(required_, Philox(seed_), attempt, q_, k_);
  begin();
}

void Descent::start_from(const MatrixView<float>& q, const MatrixView<float>& k) {
  given_start(q, k, Philox(seed_), q_, k_);
  begin();
}

void Descent::begin() {
  for (Index i = 0; i < required_.n(); ++i) {
    keep_within_radius(q_.row(i));
    keep_within_radius(k_.row(i));
  }
  query_steps_.forget();
  key_steps_.forget();
  scanned_.forget_lists(required_.n());
  std::fill(weight_.begin(), weight_.end(), 1.0f);
  age_ = 0;
}

RowCounts Descent::scan(Columns columns) {
  const bool keep = columns == Columns::InTurn && required_.may_skip_columns();
  const ColumnSampling sampling{seed_, scans_, column_step_for(columns), keep};
  if (scanner_) {
    scanned_ = scanned_elsewhere(sampling);
  } else {
    scan_rows(required_, q_, k_, sampling, scanned_, run_);
  }
  ++scans_;
  column_step_ = sampling.column_step;
  return counts();
}

Index Descent::column_step_for(Columns columns) const {
  if (columns == Columns::All || !required_.may_skip_columns()) return 1;
  const auto to_fill_lists = static_cast<Index>(hits_per_slot());
  const Index classes = std::max(required_.n() / Settings::fewest_rows_per_class, Index(1));
  if (columns == Columns::InTurn) {
    return std::clamp(to_fill_lists, std::min(Settings::kept_column_step, classes), classes);
  }
  return std::clamp(to_fill_lists, Index(1), std::min(classes, Settings::largest_column_step));
}

double Descent::hits_per_slot() const {
  double hits = 0;
  for (const Index of_row : scanned_.hits) hits += static_cast<double>(of_row);
  return hits / static_cast<double>(required_.n() * scanned_.list_cap);
}

ScannedRows Descent::scanned_elsewhere(const ColumnSampling& sampling) const {
  ScanRequest request{
      required_.tolerances(), required_.reserved(), q_.heads(), k_.heads(), sampling,
      scanned_.list_cap,      scanned_.hits};
  if (sampling.keep) {
    request.columns = scanned_.columns;
    request.listed = scanned_.listed;
  }
  ScannedRows found = scanner_(request);
  check_scanned(found, required_.n(), scanned_.list_cap);
  return found;
}

RowCounts Descent::counts() const {
  RowCounts counts;
  for (const float deficit : scanned_.deficit) {
    counts.left += !(deficit <= 0);
    counts.hard += deficit > Settings::hard_deficit;
    counts.worst_deficit = std::max(counts.worst_deficit, deficit);
  }
  return counts;
}

// A row whose query has shrunk towards zero pulls too weakly on the keys to ever become feasible by
// itself, so the weights of hard rows grow.
void Descent::reweight() {
  for (std::size_t i = 0; i < weight_.size(); ++i) {
    weight_[i] = scanned_.deficit[i] > Settings::hard_deficit
                     ? std::min(weight_[i] * Settings::weight_growth, Settings::weight_cap)
                     : std::max(weight_[i] / Settings::weight_growth, 1.0f);
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
  // Queries first: they store the curvature weights of their columns, which keys sum.
  for_blocks(required_.n(), [&](Index i, Worker& w) {
    gradient_.query(i, q_, k_, 1.0f, scanned_.rounding[static_cast<std::size_t>(i)], w.row);
  });
  for_blocks(required_.n(), [&](Index j, Worker& w) {
    gradient_.key(j, q_, w.row);
    w.nearest_plane.round(w.row.sums, grid, k_.row(j));
  });
}

void Descent::round_queries(const Grid& grid, bool all) {
  for_blocks(required_.n(), [&](Index i, Worker& w) {
    if (!all && meets(i)) return;
    const float rounding = scanned_.rounding[static_cast<std::size_t>(i)];
    gradient_.query(i, q_, k_, 1.0f, rounding, w.row);
    if (all) w.nearest_plane.round(w.row.sums, grid, q_.row(i));
    w.grid_search.improve({required_, lists_, k_, i, rounding}, grid, q_.row(i));
  });
}

void Descent::query_block(Index block, float length, Worker& worker) {
  const Index first = block * lanes;
  const Index count = std::min(lanes, required_.n() - first);
  Index failures = 0;
  for (Index lane = 0; lane < count; ++lane) {
    const Index i = first + lane;
    const auto at = static_cast<std::size_t>(i);
    const auto state = gradient_.query(i, q_, k_, weight_[at], scanned_.rounding[at], worker.row);
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
    keep_within_radius(row);
  }
}

void Descent::keep_within_radius(float* row) const {
  if (radius_ == std::numeric_limits<float>::infinity()) return;
  const float norm = std::sqrt(dot(row, row, q_.width()));
  if (norm > radius_) {
    for (Index f = 0; f < q_.dim(); ++f) row[f] *= radius_ / norm;
  }
}

}  // namespace headfit::learned
