#include "headfit/compress/metric.hpp"

namespace headfit::compress {
namespace {

// Damping, relative to the mean eigenvalue: little for the moments of the original head, whose flat
// directions must be able to move, and more for the small matrices of the maps, which change with
// every step.
constexpr double moment_damping = 1e-4;
constexpr double map_damping = 1e-2;

Factor factor(const Matrix<double>& a, double damping) {
  Eigen::MatrixXd damped = a;
  const double mean = a.trace() / static_cast<double>(std::max<Index>(1, a.rows()));
  damped.diagonal().array() += std::max(damping * mean, std::numeric_limits<double>::min());
  return Factor(damped);
}

}  // namespace

KroneckerMetric::KroneckerMetric(const CompressMoments& moments)
    : moments_(moments), keys_(factor(moments.keys, moment_damping)) {
  for (const Matrix<double>& queries : moments.queries) {
    queries_.push_back(factor(queries, moment_damping));
  }
}

void KroneckerMetric::refresh(const Matrix<double>& maps) {
  const Index size = moments_.keys.rows();
  Matrix<double> queries = Matrix<double>::Zero(maps.cols(), maps.cols());
  for (std::size_t h = 0; h < queries_.size(); ++h) {
    const auto map = maps.middleRows(static_cast<Index>(h) * size, size);
    queries += map.transpose() * moments_.queries[h] * map;
  }
  const auto key_map = maps.bottomRows(size);
  mapped_queries_ = factor(queries, map_damping);
  mapped_keys_ = factor(key_map.transpose() * moments_.keys * key_map, map_damping);
}

void KroneckerMetric::apply(Matrix<double>& x) const {
  const Index size = moments_.keys.rows();
  for (std::size_t h = 0; h <= queries_.size(); ++h) {
    const bool of_keys = h == queries_.size();
    Eigen::MatrixXd part = x.middleRows(static_cast<Index>(h) * size, size);
    (of_keys ? keys_ : queries_[h]).solveInPlace(part);
    Eigen::MatrixXd turned = part.transpose();
    (of_keys ? mapped_queries_ : mapped_keys_).solveInPlace(turned);
    x.middleRows(static_cast<Index>(h) * size, size) = turned.transpose();
  }
}

}  // namespace headfit::compress
