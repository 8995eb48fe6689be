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

void ConstraintPool::reserve(int dim, int keys, int constraints) {
  if (dim != key_single_.rows() || keys > key_single_.cols()) {
    const Index room = round_up(keys, product_group);
    key_single_.setZero(dim, std::max(room, key_single_.cols()));
    q_single_.setZero(dim);
    product_single_.setZero(key_single_.cols());
    product_.setZero(key_single_.cols());
    key_.resize(static_cast<std::size_t>(key_single_.cols()));
  }
  if (static_cast<std::size_t>(constraints) > key_number_.size()) {
    key_number_.resize(constraints);
    group_.resize(constraints);
    sign_.resize(constraints);
    rhs_.resize(constraints);
  }
  clear();
}

void ConstraintPool::clear() {
  keys_ = size_ = equalities_ = 0;
  largest_norm_ = largest_rhs_ = 0.0;
}

int ConstraintPool::add_key(const double* key, double norm) {
  replace_key(keys_, key, norm);
  return keys_++;
}

void ConstraintPool::replace_key(int number, const double* key, double norm) {
  key_[number] = key;
  if (fits_single(norm)) key_single_.col(number) = key_at(number).cast<float>();
  else key_single_.col(number).setZero();
  product_[number] = infinite;
  largest_norm_ = std::max(largest_norm_, norm);
}

int ConstraintPool::add(int key, int group, double sign, double rhs, bool is_equality) {
  const int constraint = size_++;
  key_number_[constraint] = key;
  group_[constraint] = group;
  sign_[constraint] = sign;
  rhs_[constraint] = rhs;
  if (is_equality) equalities_ = size_;
  largest_rhs_ = std::max(largest_rhs_, std::abs(rhs));
  return constraint;
}

double ConstraintPool::multiply(const Eigen::VectorXd& q, Precision precision) {
  if (precision == Precision::Double) {
    for (int k = 0; k < keys_; ++k) product_[k] = key_at(k).dot(q);
    return 0.0;
  }
  const double q_norm = q.norm();
  if (!fits_single(largest_norm_) || !(fits_single(q_norm) || q_norm == 0.0)) return infinite;
  q_single_ = q.cast<float>();
  column_products(key_single_.data(), dim(), dim(), keys_, q_single_.data(),
                  product_single_.data());
  product_.head(keys_) = product_single_.head(keys_).cast<double>();
  // The bound covers the rounding of both vectors to single precision, and that of a sum of `dim`
  // products in any order.
  return 0.51 * std::numeric_limits<float>::epsilon() * (dim() + 4) * largest_norm_ * q_norm;
}

}  // namespace headfit
