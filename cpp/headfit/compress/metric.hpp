// Preconditioners of the descent: models of the Hessian of the loss.
#pragma once

#include <Eigen/Cholesky>

#include <memory>

#include "headfit/compress/compress.hpp"

namespace headfit::compress {

using Factor = Eigen::LLT<Eigen::MatrixXd>;

class Metric {
 public:
  virtual ~Metric() = default;
  // Takes the model at these maps.
  virtual void refresh(const Matrix<double>& maps) = 0;
  // Turns a gradient into a step, in place: solves the linear system with the model.
  virtual void apply(Matrix<double>& x) const = 0;
};

// That of maps with any numbers, as Kronecker products. The block of P_q is the second moment of the
// queries times P_k^T C P_k, with C the covariance of the keys that rows attend to, and the block of
// P_k is C times the second moment of the mapped queries. With it a step depends neither on the
// basis of the original head nor on that of the smaller one.
class KroneckerMetric : public Metric {
 public:
  explicit KroneckerMetric(const CompressMoments& moments);
  void refresh(const Matrix<double>& maps) override;
  void apply(Matrix<double>& x) const override;

 private:
  const CompressMoments& moments_;
  std::vector<Factor> queries_;
  Factor keys_, mapped_queries_, mapped_keys_;
};

// That of maps that commute with rotary positions. Its steps keep them so: they change the numbers of
// the pairs alone.
class PairMetric : public Metric {
 public:
  // Throws InputError for pairs that do not fit maps of this shape.
  PairMetric(const CommutingPairs& pairs, const Matrix<double>& maps);
  void refresh(const Matrix<double>&) override {}
  void apply(Matrix<double>& x) const override;

 private:
  const CommutingPairs& pairs_;
  std::vector<Factor> factors_;  // of each query head
};

std::unique_ptr<Metric> metric_of(const CompressMoments& moments, const CompressOptions& options);

}  // namespace headfit::compress
