#include "headfit/compress/metric.hpp"

namespace headfit::compress {
namespace {

// Damping, relative to the mean eigenvalue: little for the moments of the original head, whose flat
// directions must be able to move, and more for the small matrices of the maps, which change with
// every step.
constexpr double moment_damping = 1e-4;
constexpr double map_damping = 1e-2;
// Where rows attend to hardly more than one key each, the covariance of the keys that they attend to
// says nothing of maps further away: where it is below a tenth of that of all keys, by their mean
// eigenvalues, its damping is this share of the latter.
constexpr double least_share = 1e-5;

double mean_eigenvalue(const Matrix<double>& a) {
  return a.trace() / static_cast<double>(std::max<Index>(1, a.rows()));
}

Factor factor(const Matrix<double>& a, double damping) {
  const double mean = mean_eigenvalue(a);
  const double noise = std::numeric_limits<double>::epsilon() * a.cwiseAbs().maxCoeff();
  double added = std::max({std::numeric_limits<double>::min(), damping * mean, noise});
  // Where attention is sharp, covariances are differences of large numbers: rounding may leave
  // eigenvalues below zero, for which more is added.
  for (;; added *= 10) {
    Matrix<double> damped = a;
    damped.diagonal().array() += added;
    const Factor found(damped);
    if (found.is_definite() || !(added < 1e300)) return found;
  }
}

}  // namespace

KroneckerMetric::KroneckerMetric(const CompressMoments& moments, const Matrix<double>& all_keys)
    : moments_(moments) {
  const double least = least_share * mean_eigenvalue(all_keys);
  const double added = least - moment_damping * mean_eigenvalue(moments.keys);
  if (added > 0) moments_.keys.diagonal().array() += added;
  keys_ = factor(moments_.keys, moment_damping);
  for (const Matrix<double>& queries : moments.queries) {
    queries_.push_back(factor(queries, moment_damping));
  }
}

void KroneckerMetric::refresh(const Matrix<double>& maps) {
  const Index size = moments_.keys.rows(), dim = maps.cols();
  Matrix<double> mapped(dim, size);
  const auto add_mapped = [&](Index first, const Matrix<double>& moments, Matrix<double>& sum) {
    mapped.setZero();
    add_moments<double>(maps.middleRows(first, size), moments, mapped);
    add_product<double>(mapped, maps.middleRows(first, size), sum);
  };
  Matrix<double> queries = Matrix<double>::Zero(dim, dim), keys = queries;
  Index first = 0;
  for (const Matrix<double>& moments : moments_.queries) {
    add_mapped(first, moments, queries);
    first += size;
  }
  add_mapped(first, moments_.keys, keys);
  mapped_queries_ = factor(queries, map_damping);
  mapped_keys_ = factor(keys, map_damping);
}

void KroneckerMetric::apply(Matrix<double>& x) const {
  const Index size = moments_.keys.rows();
  for (std::size_t h = 0; h <= queries_.size(); ++h) {
    const bool of_keys = h == queries_.size();
    Eigen::MatrixXd part = x.middleRows(static_cast<Index>(h) * size, size);
    (of_keys ? keys_ : queries_[h]).solve_in_place(part);
    Eigen::MatrixXd turned = part.transpose();
    (of_keys ? mapped_queries_ : mapped_keys_).solve_in_place(turned);
    x.middleRows(static_cast<Index>(h) * size, size) = turned.transpose();
  }
}

}  // namespace headfit::compress
