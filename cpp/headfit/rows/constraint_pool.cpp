#include "headfit/rows/constraint_pool.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace headfit {

void ConstraintPool::reserve(int dim, int points, int rows) {
  if (dim != keys_.rows() || points > keys_.cols()) {
    keys_.resize(dim, std::max<Eigen::Index>(points, keys_.cols()));
    product_.setZero(keys_.cols());
  }
  if (static_cast<std::size_t>(rows) > point_.size()) {
    point_.resize(rows);
    group_.resize(rows);
    sign_.resize(rows);
    rhs_.resize(rows);
    equality_.resize(rows);
  }
  clear();
}

void ConstraintPool::clear() {
  points_ = rows_ = 0;
  key_norm_ = rhs_size_ = 0.0;
}

int ConstraintPool::add_point(const double* key) {
  replace_point(points_, key);
  return points_++;
}

void ConstraintPool::replace_point(int point, const double* key) {
  keys_.col(point) = Eigen::Map<const Eigen::VectorXd>(key, keys_.rows());
  product_[point] = std::numeric_limits<double>::infinity();
  double norm = keys_.col(point).norm();
  // The careful norm only where squares overflow or vanish: it is many times slower.
  if (!(norm > 1e-140 && norm < 1e140)) norm = keys_.col(point).stableNorm();
  key_norm_ = std::max(key_norm_, norm);
}

int ConstraintPool::add_row(int point, int group, double sign, double rhs, bool equality) {
  const int r = rows_++;
  point_[r] = point;
  group_[r] = group;
  sign_[r] = sign;
  rhs_[r] = rhs;
  equality_[r] = equality;
  rhs_size_ = std::max(rhs_size_, std::abs(rhs));
  return r;
}

void ConstraintPool::multiply(const Eigen::VectorXd& q) {
  product_.head(points_).noalias() = keys_.leftCols(points_).transpose() * q;
}

std::size_t ConstraintPool::bytes() const {
  return sizeof(double) * (keys_.size() + product_.size() + 2 * sign_.size()) +
         sizeof(int) * 2 * point_.size() + equality_.size();
}

}  // namespace headfit
