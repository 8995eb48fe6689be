// Rung two: queries for given keys, one convex problem a row (rows/row_problem.hpp),
// by cutting planes whose cuts come from scans of the tile stream.
#pragma once

#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/pattern/target.hpp"
#include "headfit/row_qp/row_problem.hpp"

namespace headfit {

struct MaxMarginTask {
  double leak = 0.05;
  double distortion = 0.1;
  RowForm form = RowForm::Tolerance;
  RowSettings rows;
};

struct MaxMarginRows {
  Matrix<double> q;                // logits are plain products q.k
  std::vector<RowStatus> status;
  std::vector<double> norm;        // of q, or what a witness proves necessary
  std::vector<Witness> witness;    // terms only where a row is infeasible or past max_norm
  Index scans = 0;                 // of all keys, a batch of rows each
};

// Memory: the keys once more, and about (4 d + 200) d doubles for each of 96 rows at a time.
MaxMarginRows max_margin_queries(const Target& target, const MatrixView<double>& keys,
                                 const Mask& mask, const MaxMarginTask& task, const Run& run);

}  // namespace headfit
