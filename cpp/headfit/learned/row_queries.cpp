// Queries for keys that stay as they are: exact ones, and those of narrow formats.
#include <algorithm>
#include <iterator>
#include <numeric>

#include "headfit/learned/descent.hpp"
#include "headfit/learned/fit_learned.hpp"
#include "headfit/max_margin/max_margin.hpp"

namespace headfit {
namespace learned {

double longest_query(double max_norm, const Matrix<float>& k) {
  const double longest = k.rows() > 0 ? k.cast<double>().rowwise().norm().maxCoeff() : 0;
  const bool is_bounded = max_norm > 0 && longest > 0;
  return is_bounded ? max_norm / longest : std::numeric_limits<double>::infinity();
}

std::vector<Index> exact_queries(const Target& target, const Tolerances& tolerances,
                                 const Matrix<float>& k, const std::vector<Index>& rows,
                                 double max_query, Matrix<float>& q, const Run& run) {
  if (rows.empty()) return {};
  const Matrix<double> keys = k.cast<double>();
  MaxMarginOptions options;
  options.rows.max_norm = max_query;
  const MatrixView<double> view(keys.data(), keys.rows(), keys.cols(), RowStride(keys.cols()));
  const MaxMarginRows solved = max_margin_queries(target, rows, view, tolerances, options, run);
  std::vector<Index> failed;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (solved.status[r] == RowStatus::Optimal) {
      q.row(rows[r]) = solved.q.row(static_cast<Index>(r)).cast<float>();
    } else {
      failed.push_back(rows[r]);
    }
  }
  return failed;
}

std::vector<Index> rows_outside(const Target& target, const Tolerances& tolerances,
                                const Heads<float>& q, const Heads<float>& k, const Run& run) {
  const std::vector<Index> no_hits(static_cast<std::size_t>(target.n), 0);
  ScanRequest request;
  request.tolerances = tolerances;
  request.q = q;
  request.k = k;
  request.hits = no_hits;
  const ScannedRows scanned = headfit::scan_rows(target, request, 0, target.n, run);
  std::vector<Index> outside;
  for (Index i = 0; i < target.n; ++i) {
    if (!(scanned.deficit[static_cast<std::size_t>(i)] <= 0)) outside.push_back(i);
  }
  return outside;
}

}  // namespace learned

Matrix<float> round_queries(const Target& target, const Tolerances& tolerances,
                            const GivenHead& head, const Storage& storage, const Run& run) {
  using namespace learned;
  check_given(target, tolerances, head, run);
  storage.check();
  if (target.n == 0) return Matrix<float>(0, head.q.cols);
  const Requirements required(target, tolerances);
  const std::uint64_t seed = 0;  // for the columns that scans draw
  const Settings settings =
      Settings::for_rows(target.n, required.mean_support(), tolerances.distortion);
  constexpr float unbounded = std::numeric_limits<float>::infinity();
  Descent descent(required, head.q.cols, settings, seed, unbounded, run);
  descent.start_from(head.q[0], head.k[0]);
  descent.scan(Columns::All);
  const Grid grid = query_grid(storage, descent.k());
  descent.round_queries(grid, true);
  constexpr Index most_rounds = Settings::most_rounding_rounds;
  for (Index round = 1; descent.scan(Columns::All).left > 0 && round < most_rounds; ++round) {
    descent.round_queries(grid, false);
  }
  return descent.q().matrix();
}

NarrowQueries narrow_queries(const Target& target, const NarrowOptions& options,
                             const GivenHead& head, const Run& run) {
  using namespace learned;
  const Storage& storage = options.storage;
  check_given(target, options.stored, head, run);
  storage.check();
  if (options.less.empty()) throw InputError("narrow queries need tolerances of exact ones");
  const Matrix<float> k = head.k[0];
  const double max_query = longest_query(options.max_norm, k);
  Matrix<float> exact = head.q[0];
  std::vector<Index> failed = rows_outside(target, options.less[0], heads_of(exact), head.k, run);
  for (const Tolerances& less : options.less) {
    failed = exact_queries(target, less, k, failed, max_query, exact, run);
  }
  if (!failed.empty()) return {std::move(exact), std::move(failed), false};
  Matrix<float> rounded = Matrix<float>::Zero(exact.rows(), exact.cols());
  std::vector<Index> rows(static_cast<std::size_t>(target.n));
  std::iota(rows.begin(), rows.end(), Index(0));
  const auto unit = static_cast<float>(storage.query_unit);
  for (std::size_t round = 0; round <= options.more.size(); ++round) {
    if (round > 0) {  // rows without a query for this reserve are not rounded again
      const Tolerances& more = options.more[round - 1];
      const auto without = exact_queries(target, more, k, rows, max_query, exact, run);
      std::vector<Index> others;
      std::ranges::set_difference(rows, without, std::back_inserter(others));
      rows = std::move(others);
    }
    const SomeRows part(target, rows);
    const Matrix<float> q =
        round_queries(part.view(), options.rounded, {heads_of(exact), head.k}, storage, run);
    for (const Index i : rows) rounded.row(i) = q.row(i);
    // As they will be stored: where no good rounding was found, numbers go to the nearest.
    const Matrix<float> stored = rounded.unaryExpr([&](float x) {
      return static_cast<float>(storage.format.rounded(static_cast<double>(x / unit))) * unit;
    });
    rows = rows_outside(target, options.stored, heads_of(stored), head.k, run);
    if (rows.empty()) break;
  }
  return {std::move(rounded), std::move(rows), true};
}

}  // namespace headfit
