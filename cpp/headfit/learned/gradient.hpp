// The gradient of the feasibility loss, row by row. Queries come first: the gradient of a query
// stores the residual of each of its listed entries. The gradient of a key then sums the residuals
// of the entries in its column.
//
// The loss of row i is half the sum of (S - log A - c)^2 over its support, plus half the sum of
// max(0, S - b)^2 off the support. Here c is the mean of S - log A over the support, and b lies
// below c by what the tolerances require. In the gradient of a query, keys enter relative to the
// mean key of the support, because c moves with the query.
#pragma once

#include "headfit/learned/lists.hpp"
#include "headfit/learned/near_scan.hpp"
#include "headfit/learned/row_sums.hpp"

namespace headfit::learned {

// The scratch memory of a worker, for one row at a time.
struct RowScratch {
  RowScratch(Index dim, Index largest_support)
      : sums(dim),
        mean(static_cast<std::size_t>(PaddedRows::padded(dim))),
        logits(static_cast<std::size_t>(largest_support)) {}
  RowSums sums;
  std::vector<float> mean;    // the mean key of the support
  std::vector<float> logits;  // the logits of the support
};

class Gradient {
 public:
  Gradient(const Requirements& required, const Lists& lists);

  struct QueryState {
    float loss;
    bool meets;  // whether the row meets the tolerances, as far as its listed entries tell
  };
  // Computes the gradient and curvature of a query into the scratch. `weight` scales the
  // contribution of the row to the gradients of the keys.
  QueryState query(Index i, const PaddedRows& q, const PaddedRows& k, float weight, float rounding,
                   RowScratch& scratch);
  // The same for a key. Needs all queries to be done, and the lists transposed.
  void key(Index j, const PaddedRows& q, RowScratch& scratch) const;

 private:
  float bound_size(float logit, float pull_on_key, float share, const float* key, Entry e,
                   RowSums& sums);

  const Requirements& required_;
  const Lists& lists_;
  std::vector<float> force_, pull_;  // the residual and the curvature weight of each listed entry
};

}  // namespace headfit::learned
