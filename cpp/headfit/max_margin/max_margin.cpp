#include "headfit/max_margin/max_margin.hpp"

#include <cmath>

#include "headfit/max_margin/violators.hpp"
#include "headfit/row_qp/cutting_planes.hpp"

namespace headfit {
namespace {

void check_keys(const Target& target, const MatrixView<double>& keys) {
  if (keys.rows() != target.n || keys.cols() < 1) {
    throw InputError("keys must have one row for each of the ", target.n,
                     " rows of A and at least one column; got ", keys.rows(), " x ", keys.cols());
  }
}

// How many rows are solved at a time and share their scans. These are enough for two threads to
// scan at full speed; more rows only spill into slower caches. The number does not depend on that of
// the threads, since the number of scans would then depend on it too.
constexpr Index rows_at_once = 96;
constexpr Index block_rows = 24;  // of a scan; small, so that no thread waits long for another
static_assert(block_rows % Blocking<double>::row_group == 0);

bool proves_something(RowStatus status) {
  return status == RowStatus::Infeasible || status == RowStatus::NormLimit;
}

// The rows that are being solved and share their scans. When a row is done, the next row takes its
// place, so that scans are full as long as there are rows left.
class OpenRows {
 public:
  OpenRows(const Target& target, const MatrixView<double>& keys, const Tolerances& tolerances,
           const MaxMarginOptions& options, MaxMarginRows& out, const Run& run)
      : target_(target),
        norms_({keys.data(), keys.rows(), keys.cols(), keys.outerStride()}),
        keys_(norms_.add_to({keys.data(), keys.rows(), keys.cols(), keys.outerStride()})),
        tolerances_(tolerances),
        options_(options),
        out_(out),
        log_weights_(static_cast<std::size_t>(target.nonzeros())),
        source_(source(keys, target.mask, out)),
        packed_(source_, 0, 1, run) {
    std::transform(target.weights, target.weights + target.nonzeros(), log_weights_.begin(),
                   [](double w) { return std::log(w); });
  }

  void solve(const Run& run) {
    solvers_.resize(static_cast<std::size_t>(std::min(rows_at_once, target_.n)));
    for (std::size_t s = solvers_.size(); s-- > 0;) free_.push_back(s);
    for (;;) {
      const Index kept = count();
      fill();
      if (open_.empty()) return;
      parallel_for(count() - kept, run, [&](Index i) { start(kept + i); });
      scan(run);
      parallel_for(count(), run, [&](Index place) {
        solver(place).add(lists_[static_cast<std::size_t>(place)]);
      });
      settle();
    }
  }

 private:
  static LogitSource<double> source(const MatrixView<double>& keys, const Mask& mask,
                                    const MaxMarginRows& out) {
    LogitSource<double> source;
    source.q = {out.q.data(), 1, out.q.rows(), out.q.cols(), out.q.size(), out.q.cols()};
    source.k = {keys.data(), 1, keys.rows(), keys.cols(), keys.size(), keys.outerStride()};
    source.mask = mask;
    source.validate();
    return source;
  }

  Index count() const { return static_cast<Index>(open_.size()); }
  RowSolver& solver(Index place) { return solvers_[solver_of_[static_cast<std::size_t>(place)]]; }

  // Gives the free solvers to the next rows.
  void fill() {
    for (; next_ < target_.n && !free_.empty(); ++next_) {
      // A row in which the mask allows nothing has no constraints.
      if (target_.row_columns(next_).empty()) {
        out_.status[static_cast<std::size_t>(next_)] = RowStatus::Optimal;
        continue;
      }
      open_.push_back(next_);
      solver_of_.push_back(free_.back());
      free_.pop_back();
    }
  }

  void start(Index place) {
    const Index i = open_[static_cast<std::size_t>(place)];
    const auto support = target_.row_columns(i);
    const std::span<const double> logs{log_weights_.data() + target_.offsets[i], support.size()};
    solver(place).start(keys_,
                        {support, logs, std::log1p(tolerances_.distortion),
                         -std::log(tolerances_.leak), options_.form},
                        options_.rows);
  }

  // Scans all keys for constraints that the open rows violate.
  void scan(const Run& run) {
    thresholds_.clear();
    lists_.resize(std::max(lists_.size(), open_.size()));
    for (Index place = 0; place < count(); ++place) {
      RowSolver& row = solver(place);
      thresholds_.push_back(row.threshold());
      std::copy(row.query().begin(), row.query().end(),
                out_.q.row(open_[static_cast<std::size_t>(place)]).data());
    }
    const auto limit = Index(solver(0).limit());
    source_.rows = std::span<const Index>(open_);
    find_violators({target_, source_, thresholds_, limit, lists_, block_rows}, packed_, run);
    ++out_.scans;
  }

  // Writes the results of the rows that are done; the others stay open.
  void settle() {
    std::size_t kept = 0;
    for (Index place = 0; place < count(); ++place) {
      const Index i = open_[static_cast<std::size_t>(place)];
      const auto at = static_cast<std::size_t>(i);
      const std::size_t used = solver_of_[static_cast<std::size_t>(place)];
      const RowSolver& row = solvers_[used];
      if (row.status() == RowStatus::NeedsScan) {
        open_[kept] = i;
        solver_of_[kept++] = used;
        continue;
      }
      free_.push_back(used);
      out_.status[at] = row.status();
      std::copy(row.query().begin(), row.query().end(), out_.q.row(i).data());
      out_.norm[at] = row.norm();
      if (proves_something(row.status())) {
        out_.witness[at] = row.witness();
        out_.norm[at] = row.witness().norm_bound;
      }
    }
    open_.resize(kept);
    solver_of_.resize(kept);
  }

  const Target& target_;
  KeyNorms norms_;
  KeyView keys_;
  const Tolerances& tolerances_;
  const MaxMarginOptions& options_;
  MaxMarginRows& out_;
  std::vector<double> log_weights_;
  LogitSource<double> source_;
  PackedKeys<double> packed_;
  std::vector<RowSolver> solvers_;
  std::vector<std::size_t> free_;       // solvers that have no row
  Index next_ = 0;                      // the next row to solve
  std::vector<Index> open_;
  std::vector<std::size_t> solver_of_;  // the solver of each open row
  std::vector<double> thresholds_;
  std::vector<std::vector<Violator>> lists_;
};

// Finds the constraints that one row's query violates, in a scan of all keys.
class OneRowScan {
 public:
  OneRowScan(const Target& target, const MatrixView<double>& keys, Index row)
      : target_(target), keys_(keys), row_(row) {}

  void operator()(std::span<const double> q, double threshold, int limit,
                  std::vector<Violator>& out) {
    // The queries are a view in which every row is q. The stream is asked for row `row_`, so that
    // it uses the mask and the support of this row.
    LogitSource<double> source;
    source.q = {q.data(), 1, target_.n, keys_.cols(), 0, 0};
    source.k = {keys_.data(), 1, keys_.rows(), keys_.cols(), keys_.size(), keys_.outerStride()};
    source.mask = target_.mask;
    source.rows = std::span<const Index>(&row_, 1);
    const std::span<const double> thresholds(&threshold, 1);
    const std::span<std::vector<Violator>> lists(&out, 1);
    find_violators({target_, source, thresholds, limit, lists}, Run{1, {}});
  }

 private:
  const Target& target_;
  const MatrixView<double>& keys_;
  Index row_;
};

}  // namespace

MaxMarginRows max_margin_queries(const Target& target, const MatrixView<double>& keys,
                                 const Tolerances& tolerances, const MaxMarginOptions& options,
                                 const Run& run) {
  tolerances.check();
  if (tolerances.limits_logits()) {
    throw InputError("max_logit must be infinite here: max_norm bounds the logits of given keys");
  }
  if (!(options.rows.max_norm > 0)) {
    throw InputError("max_norm must be positive; got ", options.rows.max_norm);
  }
  check_keys(target, keys);
  check_entries(target, run);
  const auto n = static_cast<std::size_t>(target.n);
  MaxMarginRows out;
  out.q = Matrix<double>::Zero(target.n, keys.cols());
  out.status.assign(n, RowStatus::Stalled);
  out.norm.assign(n, 0);
  out.witness.resize(n);
  OpenRows(target, keys, tolerances, options, out, run).solve(run);
  return out;
}

MaxMarginRows max_margin_queries(const Target& target, std::span<const Index> rows,
                                 const MatrixView<double>& keys, const Tolerances& tolerances,
                                 const MaxMarginOptions& options, const Run& run) {
  check_entries(target, run);
  const SomeRows part(target, rows);
  const MaxMarginRows all = max_margin_queries(part.view(), keys, tolerances, options, run);
  MaxMarginRows some;
  some.scans = all.scans;
  some.q.resize(static_cast<Index>(rows.size()), keys.cols());
  for (const Index row : rows) {
    const auto i = static_cast<std::size_t>(row);
    some.q.row(static_cast<Index>(some.status.size())) = all.q.row(row);
    some.status.push_back(all.status[i]);
    some.norm.push_back(all.norm[i]);
    some.witness.push_back(all.witness[i]);
  }
  return some;
}

std::vector<FaceReport> face_reports(const Target& target, const MatrixView<double>& keys,
                                     std::span<const Index> rows, const Run& run) {
  check_keys(target, keys);
  check_entries(target, run);
  for (const Index i : rows) {
    if (i < 0 || i >= target.n || target.row_columns(i).empty()) {
      throw InputError("rows must be rows of A that are not empty; got ", i);
    }
  }
  std::vector<FaceReport> reports(rows.size());
  const KeyView bare{keys.data(), keys.rows(), keys.cols(), keys.outerStride()};
  const KeyNorms norms(bare);
  const KeyView view = norms.add_to(bare);
  parallel_tasks(static_cast<Index>(rows.size()), run, [&] {
    return [&, solver = RowSolver()](Index place) mutable {
      const Index i = rows[static_cast<std::size_t>(place)];
      OneRowScan scan(target, keys, i);
      reports[static_cast<std::size_t>(place)] =
          face_test(solver, view, target.row_columns(i), RowSettings{}, scan);
    };
  });
  return reports;
}

}  // namespace headfit
