// The preconditioner of the descent: a model of the Hessian as Kronecker products. The block of P_q
// is the second moment of the queries times P_k^T C P_k, with C the covariance of the keys that rows
// attend to, and the block of P_k is C times the second moment of the mapped queries. With it a step
// depends neither on the basis of the original head nor on that of the smaller one.
#pragma once

#include <Eigen/Cholesky>

#include "headfit/compress/compress.hpp"

namespace headfit::compress {

class Metric {
 public:
  explicit Metric(const CompressMoments& moments);

  // Takes the blocks at these maps.
  void refresh(const Matrix<double>& maps);
  // Solves the linear system with the blocks, in place.
  void apply(Matrix<double>& x) const;

 private:
  using Factor = Eigen::LLT<Eigen::MatrixXd>;

  CompressMoments moments_;
  std::vector<Factor> queries_;
  Factor keys_, mapped_queries_, mapped_keys_;
};

}  // namespace headfit::compress
