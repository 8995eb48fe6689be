// The constraints a row solver knows so far:  sign (y_g - k.q) >= rhs  (or = rhs).
//
// g names the free offset: 0 is c (log-ratios), 1 is b (margin). Several rows may share
// one key (a "point"), so products k.q are taken once a point.
#pragma once

#include <Eigen/Core>
#include <vector>

namespace headfit {

class ConstraintPool {
 public:
  static constexpr int groups = 2;

  void reserve(int dim, int points, int rows);
  void clear();
  int add_point(const double* key);
  // Overwrites the key of a point. Its product counts as unbeatable until multiply().
  void replace_point(int point, const double* key);
  int add_row(int point, int group, double sign, double rhs, bool equality);
  void multiply(const Eigen::VectorXd& q);

  int dim() const { return static_cast<int>(keys_.rows()); }
  int points() const { return points_; }
  int rows() const { return rows_; }
  int point(int r) const { return point_[r]; }
  int group(int r) const { return group_[r]; }
  double sign(int r) const { return sign_[r]; }
  double rhs(int r) const { return rhs_[r]; }
  bool equality(int r) const { return equality_[r] != 0; }
  double offset(int r) const { return sign_[r] * rhs_[r]; }  // y_g - k.q where r is active
  auto key(int r) const { return keys_.col(point_[r]); }
  double product(int point) const { return product_[point]; }  // at the last multiply()
  double key_norm() const { return key_norm_; }                // largest
  double rhs_size() const { return rhs_size_; }                // largest, absolute
  std::size_t bytes() const;

 private:
  int points_ = 0, rows_ = 0;
  double key_norm_ = 0.0, rhs_size_ = 0.0;
  Eigen::MatrixXd keys_;  // dim x points
  Eigen::VectorXd product_;
  std::vector<int> point_, group_;
  std::vector<double> sign_, rhs_;
  std::vector<char> equality_;
};

}  // namespace headfit
