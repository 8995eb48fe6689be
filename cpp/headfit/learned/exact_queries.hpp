// Exact queries for rows that a descent leaves, and the check of rows without one.
#pragma once

#include <vector>

#include "headfit/learned/fit_learned.hpp"

namespace headfit {

// A matrix as one head.
inline Heads<float> heads_of(const Matrix<float>& x) {
  return {x.data(), 1, x.rows(), x.cols(), x.size(), x.cols()};
}

namespace learned {

// The norm that queries of these keys may have within a bound on max ||q|| max ||k||; 0 is none.
double longest_query(double max_norm, const Matrix<float>& k);

// Writes the shortest queries of some rows, which keep to the tolerances and to a norm, to `q`.
// Returns the rows that have none.
std::vector<Index> exact_queries(const Target& target, const Tolerances& tolerances,
                                 const Matrix<float>& k, const std::vector<Index>& rows,
                                 double max_query, Matrix<float>& q, const Run& run);

// The rows that miss the tolerances, by one scan of all logits.
std::vector<Index> rows_outside(const Target& target, const Tolerances& tolerances,
                                const Heads<float>& q, const Heads<float>& k, const Run& run);

}  // namespace learned
}  // namespace headfit
