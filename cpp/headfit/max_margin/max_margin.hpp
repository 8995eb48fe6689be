// The max-margin method: the shortest queries for given keys that meet the tolerances. Each row is
// a convex problem of its own (row_qp/row_problem.hpp), solved by cutting planes; scans of the
// stream of logits find the violated constraints.
#pragma once

#include <span>
#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/pattern/target.hpp"
#include "headfit/row_qp/proofs.hpp"

namespace headfit {

struct MaxMarginOptions {
  RowForm form = RowForm::Tolerance;
  RowSettings rows = {};
};

struct MaxMarginRows {
  Matrix<double> q;                // logits are plain products q.k
  std::vector<RowStatus> status;
  std::vector<double> norm;        // of each query, or the norm that a witness proves necessary
  std::vector<Witness> witness;    // without terms unless the row is infeasible or past max_norm
  Index scans = 0;                 // passes over all keys, each for a batch of rows
};

// Keys: n x d. The logits are bounded through options.rows.max_norm, so tolerances.max_logit must
// be infinite. Memory: a copy of the keys, and about (4 d + 200) d doubles for each of the 96 rows
// that are solved at a time.
MaxMarginRows max_margin_queries(const Target& target, const MatrixView<double>& keys,
                                 const Tolerances& tolerances, const MaxMarginOptions& options,
                                 const Run& run);

// The same for some rows, in their order.
MaxMarginRows max_margin_queries(const Target& target, std::span<const Index> rows,
                                 const MatrixView<double>& keys, const Tolerances& tolerances,
                                 const MaxMarginOptions& options, const Run& run);

// For rows without a feasible query: whether their support is a face of the keys' convex hull. One
// report for each of `rows`, none of which may be empty; see face_test. Every round of a row
// scans all keys.
std::vector<FaceReport> face_reports(const Target& target, const MatrixView<double>& keys,
                                     std::span<const Index> rows, const Run& run);

}  // namespace headfit
