// The active constraints of a least-norm problem with free offsets, their multipliers, and the point
// that they define.
//
// Each group (there is one for each free offset) has one active constraint as its base. The other
// active constraints are columns of the factor below, as differences to their base. With u = sign *
// multiplier, the multipliers of a group sum to zero, so that of the base is minus the sum of the
// others, and q = -sum u_i (k_i - k_base).
#pragma once

#include <Eigen/Core>
#include <array>
#include <span>
#include <vector>

#include "headfit/row_qp/constraint_pool.hpp"

namespace headfit {

// An orthonormal basis Q of the active differences D, with one column per active constraint that is
// no base, and the coefficients that it is made with: Q = D C, where C is upper triangular (the
// inverse of R in D = Q R).
//
// A column of D is k_i - k_base, where the base is the one of the same group. Differences eliminate
// the free offsets c and b exactly: multipliers that sum to zero over a group need no column for the
// base.
//
// Q and C are stored as the halves of one matrix [Q; C] = [D; I] C, because every operation on a
// column of Q is also done to the column of C. A vector v that is decomposed into its part z
// orthogonal to D and the rest has two halves too: [v; 0] becomes [z; c] with z = v + D c. This takes
// products only, and no triangular solve, whose steps would depend on each other.
class DifferenceFactor {
 public:
  void reserve(int dim);
  void clear() { size_ = 0; }
  int size() const { return size_; }

  // Sets x (2 dim entries) to [z; c], where z = v + D c is orthogonal to D up to rounding. Returns
  // |z|.
  double orthogonalize(const Eigen::VectorXd& v, Eigen::VectorXd& x);
  // The same after `column` was removed, starting from the x before the removal.
  double orthogonalize_after_removal(int column, const Eigen::VectorXd& v, Eigen::VectorXd& x);
  // One more Gram-Schmidt step for an x whose z is not orthogonal to D yet.
  void project(Eigen::VectorXd& x);
  // Appends to D the vector v that x was made of; `norm` is |z|.
  void append(const Eigen::VectorXd& x, double norm);
  void remove(int column);
  // Subtracts column t from column j of D, for t < j, when the base of a group changes.
  void subtract(int j, int t);

  // Adds the shortest vector q' with D'q' = w to q. The first size() entries of w are used.
  void add_least_norm(Eigen::VectorXd& w, Eigen::VectorXd& q) const;
  // Finds the w for which D w is nearest to v.
  void least_squares(const Eigen::VectorXd& v, Eigen::VectorXd& w) const;

 private:
  auto basis() const { return columns_.topLeftCorner(dim_, size_); }
  auto coefficients() const { return columns_.block(dim_, 0, size_, size_); }
  double reorthogonalize(double before, Eigen::VectorXd& x);

  int dim_ = 0, size_ = 0;
  Eigen::MatrixXd columns_;  // [Q; C] with 2 dim rows; the first size_ columns are used
  mutable Eigen::VectorXd product_;
};

class WorkingSet {
 public:
  static constexpr int groups = ConstraintPool::groups;

  void reserve(int dim, int constraints);
  void clear();

  bool active(int constraint) const { return place_[constraint] != inactive; }
  int base(int group) const { return base_[group]; }  // -1 if the group has no active constraint
  // The constraint of each column of the factor.
  const std::vector<int>& columns() const { return column_; }
  int column_of(int constraint) const { return place_[constraint]; }  // negative if it has none
  // Calls f(constraint) for every active constraint: first the bases, then the columns.
  template <class F>
  void for_each_active(F&& f) const {
    for (const int constraint : base_) {
      if (constraint >= 0) f(constraint);
    }
    for (const int constraint : column_) f(constraint);
  }

  // Makes room for one more constraint of the pool, which is not active yet.
  void add_inactive() { place_.push_back(inactive); }
  // Gives every group a base. A base with multiplier 0 only fixes the value of the free offset: any
  // constraint of the group can be the base, and a violated one can replace it at no cost.
  void choose_bases(const ConstraintPool& pool);
  void make_base(const ConstraintPool& pool, int constraint);
  // Appends a constraint; `x` and `norm` come from orthogonalize() of its difference.
  void append(const ConstraintPool& pool, int constraint, double multiplier,
              const Eigen::VectorXd& x, double norm);
  void drop(const ConstraintPool& pool, int constraint);
  // Whether the factor had so many updates that it should be computed anew.
  bool needs_rebuild() const { return updates_ > 4 * q.size() + 100; }
  // Recomputes the point and the multipliers from the factor, and drops constraints whose
  // multiplier has the wrong sign.
  void refine(const ConstraintPool& pool);

  // k - k_base for the key of a constraint.
  void difference(const ConstraintPool& pool, int constraint, Eigen::VectorXd& out) const;
  // Improves an orthogonalize() of the difference of a constraint: recomputes z from the keys, which
  // removes the errors that updates of the factor have gathered. Returns |z|.
  double correct(const ConstraintPool& pool, int constraint, Eigen::VectorXd& x);
  double free_offset(const ConstraintPool& pool, int group) const;  // y_g
  double signed_multiplier(int constraint) const;  // 0 if not active
  // For each column: the sign of its constraint (0 for equalities, whose multipliers have no sign),
  // and whether (1 or 0) it belongs to a group.
  auto column_signs() const { return column_sign_.head(factor.size()); }
  auto members(int group) const { return member_.col(group).head(factor.size()); }

  // A step changes these together, such that the identities above hold.
  Eigen::VectorXd q;
  Eigen::VectorXd u;  // one entry per column
  std::array<double, groups> base_u{};
  DifferenceFactor factor;

 private:
  static constexpr int inactive = -2, is_base = -1;
  void gather(const ConstraintPool& pool);
  auto differences() const { return differences_.leftCols(factor.size()); }  // as of gather()
  void solve(const ConstraintPool& pool);
  void set_column(const ConstraintPool& pool, int column, int constraint, double multiplier);
  void erase_column(int column);
  void rebuild(const ConstraintPool& pool);

  std::array<int, groups> base_{};
  std::vector<int> column_;
  std::vector<int> place_;  // of each constraint: its column, or is_base, or inactive
  int updates_ = 0;  // of the factor since it was computed
  Eigen::VectorXd column_sign_;
  Eigen::MatrixXd member_, differences_;
  Eigen::VectorXd d_, x_, z_, w_;
};

}  // namespace headfit
