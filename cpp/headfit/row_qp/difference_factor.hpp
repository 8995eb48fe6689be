// An orthonormal basis Q of the active differences D, one column per active constraint,
// with what it is made of: Q = D C, C upper triangular (the inverse of R in D = Q R).
//
// A column of D is k_r - k_base, base being one active key of the same group (the
// constraints that share c, or that share b). Taking differences is what removes the
// free variables c and b exactly: multipliers that sum to zero over a group need no
// column for the base.
//
// Q and C are the two halves of one matrix [Q; C] = [D; I] C, since all that is done to
// a column of the one is done to that of the other. A vector to be split has two halves
// as well: [v; 0] becomes [z; c] with z = v + D c, by products alone and no triangular
// solve, whose steps wait for each other.
#pragma once

#include <Eigen/Core>

namespace headfit {

class DifferenceFactor {
 public:
  void reserve(int dim);
  void clear() { size_ = 0; }
  int size() const { return size_; }

  // x (2 dim entries) = [z; c] with z = v + D c orthogonal to D to rounding; returns |z|.
  double split(const Eigen::VectorXd& v, Eigen::VectorXd& x);
  // The same once `column` was removed, from the x of before.
  double split_after_remove(int column, const Eigen::VectorXd& v, Eigen::VectorXd& x);
  // One more pass over an x whose z is not orthogonal to D yet.
  void project(Eigen::VectorXd& x);
  // The column v of that split joins D.
  void append(const Eigen::VectorXd& x, double norm);
  void remove(int column);
  // Column j -= column t, for t < j: half of a change of base.
  void subtract(int j, int t);

  // The shortest q with D'q = w; w and the result of the next hold size() entries in use.
  void add_shortest(Eigen::VectorXd& w, Eigen::VectorXd& q) const;
  // The w with which D w comes nearest to v.
  void combine(const Eigen::VectorXd& v, Eigen::VectorXd& w) const;

 private:
  auto basis() const { return columns_.topLeftCorner(dim_, size_); }
  auto combination() const { return columns_.block(dim_, 0, size_, size_); }
  double clean(double before, Eigen::VectorXd& x);

  int dim_ = 0, size_ = 0;
  Eigen::MatrixXd columns_;  // [Q; C], 2 dim rows, the first size_ columns in use
  mutable Eigen::VectorXd product_;
};

}  // namespace headfit
