// The constraints that the solver of a row knows so far:  sign (y_g - k.q) >= rhs  (or = rhs).
//
// Here g selects one of the two free offsets: y_0 is c (log-ratios), y_1 is b (margin). In this
// file and in those that use it, a "row" of the pool is one constraint. Several constraints may
// share a key, called a "point", so products k.q are computed once per point. Equalities come
// first.
#pragma once

#include <Eigen/Core>
#include <limits>
#include <vector>

namespace headfit {

class ConstraintPool {
 public:
  static constexpr int groups = 2;
  static constexpr double infinite = std::numeric_limits<double>::infinity();

  void reserve(int dim, int points, int rows);
  void clear();
  // Adds a key, which is not copied and must stay valid while the row is solved. `norm` is its
  // norm.
  int add_point(const double* key, double norm);
  // Replaces the key of a point. Until the next multiply() its product counts as infinite.
  void replace_point(int point, const double* key, double norm);
  int add_row(int point, int group, double sign, double rhs, bool equality);

  enum class Precision { Single, Double };
  // Computes the products of all points with q. Returns a bound on the error of each: infinite if
  // single precision cannot be used, and 0 in double precision, whose rounding the tolerances of
  // the solver allow for.
  double multiply(const Eigen::VectorXd& q, Precision precision);

  int dim() const { return static_cast<int>(q_.size()); }
  int points() const { return points_; }
  int rows() const { return rows_; }
  int equalities() const { return equalities_; }
  int point(int r) const { return point_[r]; }
  int group(int r) const { return group_[r]; }
  double sign(int r) const { return sign_[r]; }
  double rhs(int r) const { return rhs_[r]; }
  bool equality(int r) const { return r < equalities_; }
  // The value of y_g - k.q if r is active.
  double offset(int r) const { return sign_[r] * rhs_[r]; }
  Eigen::Map<const Eigen::VectorXd> key(int r) const { return key_of_point(point_[r]); }
  Eigen::Map<const Eigen::VectorXd> key_of_point(int point) const { return {key_[point], dim()}; }
  double product(int point) const { return product_[point]; }  // as of the last multiply()
  double key_norm() const { return key_norm_; }                // the largest norm
  double rhs_size() const { return rhs_size_; }                // the largest |rhs|

 private:
  int points_ = 0, rows_ = 0, equalities_ = 0;
  double key_norm_ = 0.0, rhs_size_ = 0.0;
  std::vector<const double*> key_;
  Eigen::MatrixXf keys_;  // dim x points
  Eigen::VectorXf q_, screened_;
  Eigen::VectorXd product_;
  std::vector<int> point_, group_;
  std::vector<double> sign_, rhs_;
};

}  // namespace headfit
