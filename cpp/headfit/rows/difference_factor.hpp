// Thin QR of the active differences: D = Q R, one column per active constraint.
//
// A column is k_r - k_base, base being one active key of the same group (the
// constraints that share c, or that share b). Taking differences is what removes the
// free variables c and b exactly: multipliers that sum to zero over a group need no
// column for the base.
#pragma once

#include <Eigen/Core>

namespace headfit {

class DifferenceFactor {
 public:
  void reserve(int dim);
  void clear() { size_ = 0; }
  int size() const { return size_; }

  // h = Q'v and z = v - Q h, orthogonal to Q to rounding; returns |z|.
  double split(const Eigen::VectorXd& v, Eigen::VectorXd& h, Eigen::VectorXd& z);
  void append(const Eigen::VectorXd& h, const Eigen::VectorXd& z, double norm);
  void remove(int column);
  // Column j -= column t, for t < j: half of a change of base.
  void subtract(int j, int t);

  auto q() const { return q_.leftCols(size_); }
  // In place, on the first size() entries.
  void solve_r(Eigen::VectorXd& x) const;
  void solve_rt(Eigen::VectorXd& x) const;

 private:
  int size_ = 0;
  Eigen::MatrixXd q_;  // dim x dim, the first size_ columns in use
  Eigen::MatrixXd r_;
  Eigen::VectorXd correction_;
};

}  // namespace headfit
