// From shares of whole rows to rows that sum to 1.
#pragma once

#include <algorithm>
#include <numeric>

#include "headfit/sparsify/sparsify.hpp"

namespace headfit {

// Scales the weights of each row, shares of it so far, and writes down what is missing.
// That is also the total variation between the two: what is dropped counts once, and what
// is kept grows by as much in all.
inline void renormalise(SparseRows& rows) {
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
}

}  // namespace headfit
