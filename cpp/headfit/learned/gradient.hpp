// The gradient of the feasibility loss, row by row: first of every query, which leaves the
// forces of its entries behind, then of every key, which gathers them.
//
// The loss of row i is half the sum of (S - log A - c)^2 over its support plus half the sum
// of max(0, S - b)^2 elsewhere, with c the mean of S - log A over the support and b below c
// by what the tolerances ask. A query sees keys relative to the support's mean key, because
// c moves with it.
#pragma once

#include "headfit/learned/lists.hpp"
#include "headfit/learned/near_fold.hpp"
#include "headfit/learned/row_sums.hpp"

namespace headfit::learned {

// What a worker needs for one row at a time.
struct RowScratch {
  RowScratch(Index dim, Index largest_support)
      : sums(dim),
        mean(static_cast<std::size_t>(PaddedRows::padded(dim))),
        logits(static_cast<std::size_t>(largest_support)) {}
  RowSums sums;
  std::vector<float> mean;    // of the support's keys
  std::vector<float> logits;  // of the support
};

class Gradient {
 public:
  Gradient(const Requirements& required, const Lists& lists);

  struct QueryState {
    float loss;
    bool meets;  // the tolerances, as far as the listed entries tell
  };
  // Leaves the row's sums in the scratch. `weight` scales its pull on the keys.
  QueryState query(Index i, const PaddedRows& q, const PaddedRows& k, float weight, float rounding,
                   RowScratch& scratch);
  // After all queries, with the lists transposed.
  void key(Index j, const PaddedRows& q, RowScratch& scratch) const;

 private:
  float bound_size(float logit, float pull_on_key, float share, const float* key, Entry e,
                   RowSums& sums);

  const Requirements& required_;
  const Lists& lists_;
  std::vector<float> force_, pull_;  // of each entry: residual and curvature weight
};

}  // namespace headfit::learned
