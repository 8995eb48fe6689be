// The constraints a row solver knows so far:  sign (y_g - k.q) >= rhs  (or = rhs).
//
// g names the free offset: 0 is c (log-ratios), 1 is b (margin). Several rows may share
// one key (a "point"), so products k.q are taken once a point. Equalities come first.
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
  // Keys are not copied: they must outlive the row that is solved. `norm` is the key's.
  int add_point(const double* key, double norm);
  // Puts another key in its place. Its product counts as unbeatable until multiply().
  void replace_point(int point, const double* key, double norm);
  int add_row(int point, int group, double sign, double rhs, bool equality);

  enum class Precision { Single, Double };
  // Products of all points with q. Returns a bound on what each misses: infinite where single
  // precision says nothing, 0 in double precision, whose rounding is the solver's own.
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
  double offset(int r) const { return sign_[r] * rhs_[r]; }  // y_g - k.q where r is active
  Eigen::Map<const Eigen::VectorXd> key(int r) const { return key_of_point(point_[r]); }
  Eigen::Map<const Eigen::VectorXd> key_of_point(int point) const { return {key_[point], dim()}; }
  double product(int point) const { return product_[point]; }  // at the last multiply()
  double key_norm() const { return key_norm_; }                // largest
  double rhs_size() const { return rhs_size_; }                // largest, absolute

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
