#include "headfit/row_qp/constraint_pool.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "headfit/simd/column_products.hpp"

namespace headfit {

namespace {
// Whether vectors of this norm can be multiplied in single precision without overflow or underflow.
bool fits_single(double norm) { return norm > 1e-18 && norm < 1e18; }
}  // namespace

void ConstraintPool::reserve(int dim, int points, int rows) {
  if (dim != keys_.rows() || points > keys_.cols()) {
    const Index room = round_up(points, product_group);
    keys_.setZero(dim, std::max(room, keys_.cols()));
    q_.setZero(dim);
    screened_.setZero(keys_.cols());
    product_.setZero(keys_.cols());
    key_.resize(static_cast<std::size_t>(keys_.cols()));
  }
  if (static_cast<std::size_t>(rows) > point_.size()) {
    point_.resize(rows);
    group_.resize(rows);
    sign_.resize(rows);
    rhs_.resize(rows);
  }
  clear();
}

void ConstraintPool::clear() {
  points_ = rows_ = equalities_ = 0;
  key_norm_ = rhs_size_ = 0.0;
}

int ConstraintPool::add_point(const double* key, double norm) {
  replace_point(points_, key, norm);
  return points_++;
}

void ConstraintPool::replace_point(int point, const double* key, double norm) {
  key_[point] = key;
  if (fits_single(norm)) keys_.col(point) = key_of_point(point).cast<float>();
  else keys_.col(point).setZero();
  product_[point] = infinite;
  key_norm_ = std::max(key_norm_, norm);
}

int ConstraintPool::add_row(int point, int group, double sign, double rhs, bool equality) {
  const int r = rows_++;
  point_[r] = point;
  group_[r] = group;
  sign_[r] = sign;
  rhs_[r] = rhs;
  if (equality) equalities_ = rows_;
  rhs_size_ = std::max(rhs_size_, std::abs(rhs));
  return r;
}

double ConstraintPool::multiply(const Eigen::VectorXd& q, Precision precision) {
  if (precision == Precision::Double) {
    for (int p = 0; p < points_; ++p) product_[p] = key_of_point(p).dot(q);
    return 0.0;
  }
  const double q_norm = q.norm();
  if (!fits_single(key_norm_) || !(fits_single(q_norm) || q_norm == 0.0)) return infinite;
  q_ = q.cast<float>();
  column_products(keys_.data(), dim(), dim(), points_, q_.data(), screened_.data());
  product_.head(points_) = screened_.head(points_).cast<double>();
  // The bound covers the rounding of both vectors to single precision, and that of a sum of `dim`
  // products in any order.
  return 0.51 * std::numeric_limits<float>::epsilon() * (dim() + 4) * key_norm_ * q_norm;
}

}  // namespace headfit
