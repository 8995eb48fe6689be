// An orthonormal basis Q of the active differences D, with one column per active constraint, and
// the coefficients that it is made with: Q = D C, where C is upper triangular (the inverse of R in
// D = Q R).
//
// A column of D is k_r - k_base, where the base is one active key of the same group (a group is
// made of the constraints that share c, or of those that share b). Differences eliminate the free
// variables c and b exactly: multipliers that sum to zero over a group need no column for the base.
//
// Q and C are stored as the halves of one matrix [Q; C] = [D; I] C, because every operation on a
// column of Q is also done to the column of C. A vector v that is split into its part z orthogonal
// to D and the rest has two halves too: [v; 0] becomes [z; c] with z = v + D c. This takes products
// only, and no triangular solve, whose steps would depend on each other.
#pragma once

#include <Eigen/Core>

namespace headfit {

class DifferenceFactor {
 public:
  void reserve(int dim);
  void clear() { size_ = 0; }
  int size() const { return size_; }

  // Sets x (2 dim entries) to [z; c], where z = v + D c is orthogonal to D up to rounding. Returns
  // |z|.
  double split(const Eigen::VectorXd& v, Eigen::VectorXd& x);
  // The same after `column` was removed, starting from the x before the removal.
  double split_after_remove(int column, const Eigen::VectorXd& v, Eigen::VectorXd& x);
  // One more Gram-Schmidt step for an x whose z is not orthogonal to D yet.
  void project(Eigen::VectorXd& x);
  // Appends the vector v of the last split to D.
  void append(const Eigen::VectorXd& x, double norm);
  void remove(int column);
  // Subtracts column t from column j of D, for t < j, when the base of a group changes.
  void subtract(int j, int t);

  // Adds the shortest vector q' with D'q' = w to q. The first size() entries of w are used.
  void add_shortest(Eigen::VectorXd& w, Eigen::VectorXd& q) const;
  // Finds the w for which D w is nearest to v.
  void combine(const Eigen::VectorXd& v, Eigen::VectorXd& w) const;

 private:
  auto basis() const { return columns_.topLeftCorner(dim_, size_); }
  auto combination() const { return columns_.block(dim_, 0, size_, size_); }
  double clean(double before, Eigen::VectorXd& x);

  int dim_ = 0, size_ = 0;
  Eigen::MatrixXd columns_;  // [Q; C] with 2 dim rows; the first size_ columns are used
  mutable Eigen::VectorXd product_;
};

}  // namespace headfit
