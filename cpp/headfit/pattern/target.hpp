// Sparse targets: a view, and the check that one is a valid attention pattern.
#pragma once

#include "headfit/base/threads.hpp"
#include "headfit/base/types.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

// A row-stochastic n x n matrix in compressed rows; columns sorted, no duplicates.
struct Target {
  Index n = 0;
  const Offset* offsets = nullptr;  // n + 1
  const Column* columns = nullptr;
  const double* weights = nullptr;

  Offset nonzeros() const { return offsets[n]; }
  std::span<const Column> row_columns(Index i) const {
    return {columns + offsets[i], columns + offsets[i + 1]};
  }
  std::span<const double> row_weights(Index i) const {
    return {weights + offsets[i], weights + offsets[i + 1]};
  }
};

struct TargetSummary {
  Index nonzeros = 0;
  Index per_row = 0;     // most nonzeros in a row
  Index per_column = 0;  // most nonzeros in a column
  double gamma = 1;      // largest ratio of two weights of one row
};

// Throws TargetError naming the first offending row (and column) unless columns are
// sorted and in range, weights positive and finite, every row sums to 1 within
// `sum_tolerance`, nothing lies on a masked position, and a row is empty only where
// the mask leaves it nothing.
TargetSummary validate_target(const Target& target, const Mask& mask, double sum_tolerance,
                              const Run& run);

}  // namespace headfit
