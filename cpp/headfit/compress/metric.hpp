// The preconditioner of the descent: a model of the Hessian of the loss.
#pragma once

#include "headfit/base/linear_algebra.hpp"
#include "headfit/compress/compress.hpp"

namespace headfit::compress {

// Kronecker products: the block of P_q is the second moment of the queries times P_k^T C P_k, with C
// the covariance of the keys that rows attend to, and the block of P_k is C times the second moment of
// the mapped queries. With it a step depends neither on the basis of the original head nor on that of
// the smaller one.
class KroneckerMetric {
 public:
  // `all_keys` is the covariance of all keys, whether attended to or not.
  KroneckerMetric(const CompressMoments& moments, const Matrix<double>& all_keys);
  // Takes the model at these maps.
  void refresh(const Matrix<double>& maps);
  // Turns a gradient into a step, in place: solves the linear system with the model.
  void apply(Matrix<double>& x) const;

 private:
  CompressMoments moments_;
  std::vector<Factor> queries_;
  Factor keys_, mapped_queries_, mapped_keys_;
};

}  // namespace headfit::compress
