// The preconditioner of the descent: the inverse of the damped diagonal blocks of the Hessian, one
// small matrix for each query and each key. With it the descent does not depend on the basis in
// which queries and keys are written.
#pragma once

#include "headfit/base/threads.hpp"
#include "headfit/base/types.hpp"

namespace headfit::soft {

template <class T>
class Preconditioner {
 public:
  // The damping of the first `queries` rows depends on their mean, that of the other rows on
  // theirs.
  Preconditioner(Index rows, Index queries, Index dim, const Run& run);

  // Takes the lower triangles of the blocks, one in each row.
  void refresh(const Matrix<T>& curvature);
  // Solves the linear system of every row of x with its block, in place.
  void apply(Matrix<T>& x) const;

 private:
  double mean_trace(const Matrix<T>& curvature, Index begin, Index end) const;
  void factor(const Matrix<T>& curvature, Index row, double mean);

  Index rows_, queries_, dim_;
  const Run& run_;
  std::vector<T> factors_;  // Cholesky factors, dim x dim each, with inverted diagonals
};

}  // namespace headfit::soft
