// The active constraints of a least-norm problem with free offsets, their multipliers, and the
// point that they define.
//
// Each group (there is one for each free offset) has one active constraint as its base. The other
// active constraints are columns of the factor, as differences to their base. With u = sign *
// multiplier, the multipliers of a group sum to zero, so that of the base is minus the sum of the
// others, and q = -sum u_r (k_r - k_base).
#pragma once

#include <Eigen/Core>
#include <array>
#include <span>
#include <vector>

#include "headfit/row_qp/constraint_pool.hpp"
#include "headfit/row_qp/difference_factor.hpp"

namespace headfit {

class WorkingSet {
 public:
  static constexpr int groups = ConstraintPool::groups;

  void reserve(int dim, int rows);
  void clear();

  bool active(int row) const { return place_[row] != outside; }
  int base(int group) const { return base_[group]; }  // -1 if the group has no active constraint
  const std::vector<int>& columns() const { return column_; }
  int column_of(int row) const { return place_[row]; }  // negative if it has no column
  // Calls f(row) for every active constraint: first the bases, then the columns.
  template <class F>
  void each(F&& f) const {
    for (const int r : base_) {
      if (r >= 0) f(r);
    }
    for (const int r : column_) f(r);
  }

  void add_row(int row);
  // Gives every group a base. A base with multiplier 0 only fixes the value of the free offset: any
  // constraint of the group can take this place, and a violated one can replace it at no cost.
  void seat_bases(const ConstraintPool& pool);
  void take_seat(const ConstraintPool& pool, int row);
  // Appends a constraint; `split` and `norm` come from the factor's split() of its difference.
  void append(const ConstraintPool& pool, int row, double multiplier, const Eigen::VectorXd& split,
              double norm);
  void drop(const ConstraintPool& pool, int row);
  bool worn() const { return updates_ > 4 * q.size() + 100; }
  // Recomputes the point and the multipliers from the factor, and drops constraints whose
  // multiplier has the wrong sign.
  void refine(const ConstraintPool& pool);
  // Makes a working set of a list of constraints, without those that depend on others, and refines
  // it.
  void warm(const ConstraintPool& pool, std::span<const int> rows);

  void difference(const ConstraintPool& pool, int row, Eigen::VectorXd& out) const;
  // Improves the factor's split() of the difference of a constraint: recomputes z from the keys,
  // which removes the errors that updates of the factor have gathered. Returns |z|.
  double correct(const ConstraintPool& pool, int row, Eigen::VectorXd& split);
  double level(const ConstraintPool& pool, int group) const;  // y_g
  double signed_multiplier(int row) const;                    // 0 if not active
  // For each column: the sign of its constraint (0 for equalities, whose multipliers have no sign),
  // and whether (1 or 0) it belongs to a group.
  auto sense() const { return sense_.head(factor.size()); }
  auto members(int group) const { return member_.col(group).head(factor.size()); }

  // A step changes these together, such that the identities above hold.
  Eigen::VectorXd q;
  Eigen::VectorXd u;  // one entry per column
  std::array<double, groups> base_u{};
  DifferenceFactor factor;

 private:
  static constexpr int outside = -2, seated = -1;
  void gather(const ConstraintPool& pool);
  auto differences() const { return differences_.leftCols(factor.size()); }  // as of gather()
  void solve(const ConstraintPool& pool);
  void set_column(const ConstraintPool& pool, int column, int row, double multiplier);
  void erase_column(int column);
  void rebuild(const ConstraintPool& pool, double dependency_tol);

  std::array<int, groups> base_{};
  std::vector<int> column_;  // the constraint of each column of the factor
  std::vector<int> place_;  // the column of each constraint, or seated (a base), or outside
  int updates_ = 0;
  Eigen::VectorXd sense_;
  Eigen::MatrixXd member_, differences_;
  Eigen::VectorXd d_, x_, z_, w_;
};

}  // namespace headfit
