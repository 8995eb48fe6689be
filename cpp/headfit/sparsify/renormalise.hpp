// Scales the kept weights of rows so that each row sums to 1.
#pragma once

#include <algorithm>
#include <numeric>

#include "headfit/sparsify/sparsify.hpp"

namespace headfit {

// Weights are shares of their whole rows when this is called. Scales those of each row to sum to 1,
// and records the share that was dropped. It equals the total variation distance between the row
// before and after: entries lose that much in all, and those that are kept gain as much.
inline SparseRows renormalised(SparseRows rows) {
  const std::size_t n = rows.offsets.size() - 1;
  rows.dropped.assign(n, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    double* begin = rows.weights.data() + rows.offsets[i];
    double* end = rows.weights.data() + rows.offsets[i + 1];
    if (begin == end) continue;
    const double kept = std::accumulate(begin, end, 0.0);
    rows.dropped[i] = std::max(0.0, 1 - kept);
    std::for_each(begin, end, [&](double& w) { w /= kept; });
  }
  return rows;
}

}  // namespace headfit
