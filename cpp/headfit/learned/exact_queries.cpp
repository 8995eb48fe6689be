#include "headfit/learned/exact_queries.hpp"

#include "headfit/max_margin/max_margin.hpp"

namespace headfit::learned {

double longest_query(double max_norm, const Matrix<float>& k) {
  const double longest = k.cast<double>().rowwise().norm().maxCoeff();
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
  request.q = q;
  request.k = k;
  request.hits = no_hits;
  const ScannedRows scanned = scan_rows(target, tolerances, request, {0, target.n}, run);
  std::vector<Index> outside;
  for (Index i = 0; i < target.n; ++i) {
    if (!(scanned.deficit[static_cast<std::size_t>(i)] <= 0)) outside.push_back(i);
  }
  return outside;
}

}  // namespace headfit::learned
