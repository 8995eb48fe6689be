// The projection method, the algorithm of the paper's proof: a random projection of the target
// logits. Likhosherstov, Choromanski and Weller, arXiv 2106.03764.
#pragma once

#include <cstdint>

#include "headfit/pattern/target.hpp"
#include "headfit/projection/sketch.hpp"

namespace headfit {

struct ProjectionOptions {
  Sketch sketch = Sketch::rademacher;
  std::uint64_t seed = 0;
  double scale = 1;  // what logits are multiplied with: they are scale * Q K^T
};

// Neither function reads tolerances.max_logit: a projection cannot bound its logits, the
// certificate judges them.

// The target logits B on the support of A, in the order of its nonzeros: log(A / min A) + tau, with
// the minimum over the row and tau = log(1 / leak) + log(1 + distortion).
void target_logits(const Target& target, const Tolerances& tolerances, std::span<double> b,
                   const Run& run);

// Fills K = G / sqrt(d) and Q = B K / scale for the sketch G, so that the mean of scale * Q K^T
// over sketches is B. Q and K: n x d.
template <class T>
void project_identity(const Target& target, const Tolerances& tolerances,
                      const ProjectionOptions& options, Eigen::Ref<Matrix<T>> q,
                      Eigen::Ref<Matrix<T>> k, const Run& run);

}  // namespace headfit
