#include "headfit/construct/max_margin.hpp"

#include <cmath>

#include "headfit/construct/violators.hpp"
#include "headfit/rows/cutting_planes.hpp"

namespace headfit {
namespace {

bool proves_something(RowStatus status) {
  return status == RowStatus::Infeasible || status == RowStatus::NormLimit;
}

// A batch of rows that share their scans.
class Batch {
 public:
  Batch(const Target& target, const MatrixView<double>& keys, const Mask& mask,
        const MaxMarginTask& task, MaxMarginRows& out)
      : target_(target),
        keys_{keys.data(), keys.rows(), keys.cols(), keys.outerStride()},
        task_(task),
        out_(out),
        log_weights_(static_cast<std::size_t>(target.nonzeros())) {
    std::transform(target.weights, target.weights + target.nonzeros(), log_weights_.begin(),
                   [](double w) { return std::log(w); });
    source_.q = {out.q.data(), 1, out.q.rows(), out.q.cols(), out.q.size(), out.q.cols()};
    source_.k = {keys.data(), 1, keys.rows(), keys.cols(), keys.size(), keys.outerStride()};
    source_.mask = mask;
  }

  void solve(Index first, Index last, const Run& run) {
    const auto count = static_cast<std::size_t>(last - first);
    solvers_.resize(std::max(solvers_.size(), count));
    open_.clear();
    for (Index i = first; i < last; ++i) {
      // A row that the mask leaves empty asks for nothing.
      if (target_.row_columns(i).empty()) {
        out_.status[static_cast<std::size_t>(i)] = RowStatus::Optimal;
      } else {
        open_.push_back(i);
      }
    }
    parallel_for(static_cast<Index>(open_.size()), run, [&](Index place) { start(first, place); });
    settle(first);
    while (!open_.empty()) {
      scan(first, run);
      parallel_for(static_cast<Index>(open_.size()), run, [&](Index place) {
        solver(first, place).add(lists_[static_cast<std::size_t>(place)]);
      });
      settle(first);
    }
  }

 private:
  RowSolver& solver(Index first, Index place) {
    return solvers_[static_cast<std::size_t>(open_[static_cast<std::size_t>(place)] - first)];
  }

  void start(Index first, Index place) {
    const Index i = open_[static_cast<std::size_t>(place)];
    const auto support = target_.row_columns(i);
    const std::span<const double> logs{log_weights_.data() + target_.offsets[i], support.size()};
    solver(first, place)
        .start(keys_, {support, logs, std::log1p(task_.distortion), -std::log(task_.leak), task_.form},
               task_.rows);
  }

  // One scan of all keys for the rows that are still open.
  void scan(Index first, const Run& run) {
    thresholds_.clear();
    lists_.resize(std::max(lists_.size(), open_.size()));
    for (Index place = 0; place < static_cast<Index>(open_.size()); ++place) {
      RowSolver& row = solver(first, place);
      thresholds_.push_back(row.threshold());
      std::copy(row.query().begin(), row.query().end(),
                out_.q.row(open_[static_cast<std::size_t>(place)]).data());
    }
    const auto limit = static_cast<std::size_t>(solver(first, 0).limit());
    source_.rows = std::span<const Index>(open_);
    stream_tiles(source_, run, [&] {
      return ViolatorFold<double>(target_, source_, thresholds_, limit, lists_);
    });
    ++out_.scans;
  }

  // Writes the rows that are done and keeps the others open.
  void settle(Index first) {
    std::vector<Index> still_open;
    for (Index place = 0; place < static_cast<Index>(open_.size()); ++place) {
      const Index i = open_[static_cast<std::size_t>(place)];
      const auto at = static_cast<std::size_t>(i);
      RowSolver& row = solver(first, place);
      if (row.status() == RowStatus::NeedsScan) {
        still_open.push_back(i);
        continue;
      }
      out_.status[at] = row.status();
      std::copy(row.query().begin(), row.query().end(), out_.q.row(i).data());
      out_.norm[at] = row.norm();
      if (proves_something(row.status())) {
        out_.witness[at] = row.witness();
        out_.norm[at] = row.witness().norm_bound;
      }
    }
    open_ = std::move(still_open);
  }

  const Target& target_;
  KeyView keys_;
  const MaxMarginTask& task_;
  MaxMarginRows& out_;
  std::vector<double> log_weights_;
  LogitSource<double> source_;
  std::vector<RowSolver> solvers_;
  std::vector<Index> open_;
  std::vector<double> thresholds_;
  std::vector<std::vector<Violator>> lists_;
};

}  // namespace

MaxMarginRows max_margin_queries(const Target& target, const MatrixView<double>& keys,
                                 const Mask& mask, const MaxMarginTask& task, const Run& run) {
  if (keys.rows() != target.n) {
    throw InputError("keys must have one row for each of the " + std::to_string(target.n) +
                     " rows of A; got " + std::to_string(keys.rows()));
  }
  const auto n = static_cast<std::size_t>(target.n);
  MaxMarginRows out;
  out.q = Matrix<double>::Zero(target.n, keys.cols());
  out.status.assign(n, RowStatus::Stalled);
  out.norm.assign(n, 0);
  out.witness.resize(n);
  Batch batch(target, keys, mask, task, out);
  constexpr Index rows_at_once = 192;  // enough for the scan to run at full speed
  for (Index first = 0; first < target.n; first += rows_at_once) {
    batch.solve(first, std::min(first + rows_at_once, target.n), run);
  }
  return out;
}

}  // namespace headfit
