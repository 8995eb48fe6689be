// The constraints that the solver of a row knows so far:  sign (y_g - k.q) >= rhs  (or = rhs).
//
// Here g, the group of the constraint, selects one of the two free offsets: y_0 is c (log-ratios),
// y_1 is b (margin). Several constraints may share a key, so products k.q are computed once per key.
// Constraints and keys are numbered in the order in which they are added; equalities come first.
#pragma once

#include <Eigen/Core>
#include <limits>
#include <vector>

namespace headfit {

class ConstraintPool {
 public:
  static constexpr int groups = 2;
  static constexpr double infinite = std::numeric_limits<double>::infinity();

  void reserve(int dim, int keys, int constraints);
  void clear();
  // Adds a key, which is not copied and must stay valid while the row is solved. `norm` is its
  // norm.
  int add_key(const double* key, double norm);
  // Replaces a key. Until the next multiply() its product counts as infinite.
  void replace_key(int number, const double* key, double norm);
  int add(int key, int group, double sign, double rhs, bool is_equality);

  enum class Precision { Single, Double };
  // Computes the products of all keys with q. Returns a bound on the error of each: infinite if
  // single precision cannot be used, and 0 in double precision, whose rounding the tolerances of
  // the solver allow for.
  double multiply(const Eigen::VectorXd& q, Precision precision);

  int dim() const { return static_cast<int>(q_single_.size()); }
  int keys() const { return keys_; }
  int size() const { return size_; }
  int equalities() const { return equalities_; }
  int key_number(int constraint) const { return key_number_[constraint]; }
  int group(int constraint) const { return group_[constraint]; }
  double sign(int constraint) const { return sign_[constraint]; }
  double rhs(int constraint) const { return rhs_[constraint]; }
  bool is_equality(int constraint) const { return constraint < equalities_; }
  // The value of y_g - k.q where the constraint is active.
  double active_value(int constraint) const { return sign_[constraint] * rhs_[constraint]; }
  Eigen::Map<const Eigen::VectorXd> key(int constraint) const {
    return key_at(key_number_[constraint]);
  }
  Eigen::Map<const Eigen::VectorXd> key_at(int number) const { return {key_[number], dim()}; }
  double product(int key) const { return product_[key]; }  // as of the last multiply()
  double largest_norm() const { return largest_norm_; }  // of a key
  double largest_rhs() const { return largest_rhs_; }  // the largest |rhs|

 private:
  int keys_ = 0, size_ = 0, equalities_ = 0;
  double largest_norm_ = 0.0, largest_rhs_ = 0.0;
  std::vector<const double*> key_;
  Eigen::MatrixXf key_single_;  // dim x keys, in single precision
  Eigen::VectorXf q_single_, product_single_;
  Eigen::VectorXd product_;
  std::vector<int> key_number_, group_;  // one entry per constraint, as sign and rhs
  std::vector<double> sign_, rhs_;
};

}  // namespace headfit
