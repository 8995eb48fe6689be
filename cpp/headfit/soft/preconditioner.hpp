// The inverse of the damped diagonal blocks of the Hessian: one small matrix for each query and
// each key. It makes the descent indifferent to the basis that queries and keys are written in.
#pragma once

#include "headfit/base/threads.hpp"
#include "headfit/base/types.hpp"

namespace headfit::soft {

template <class T>
class Preconditioner {
 public:
  // The first `queries` rows are damped among themselves, the rest too.
  Preconditioner(Index rows, Index queries, Index dim, const Run& run);

  // Lower triangles of the blocks, one a row.
  void refresh(const Matrix<T>& curvature);
  // Solves every row of x against its block, in place.
  void apply(Matrix<T>& x) const;

 private:
  double mean_trace(const Matrix<T>& curvature, Index begin, Index end) const;
  void factor(const Matrix<T>& curvature, Index row, double mean);

  Index rows_, queries_, dim_;
  const Run& run_;
  std::vector<T> factors_;  // Cholesky factors, dim x dim each, with reciprocals on the diagonal
};

}  // namespace headfit::soft
