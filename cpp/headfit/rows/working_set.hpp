// The active constraints of a least-norm problem with free offsets, their multipliers
// and the point they define.
//
// Each group (each free offset) has one base row; the other active rows are columns of
// the factor as differences to their base. With u = sign * multiplier, the multipliers
// of a group sum to zero (the base's is minus the rest) and q = -sum u_r (k_r - k_base).
#pragma once

#include <Eigen/Core>
#include <array>
#include <span>
#include <vector>

#include "headfit/rows/constraint_pool.hpp"
#include "headfit/rows/difference_factor.hpp"

namespace headfit {

class WorkingSet {
 public:
  static constexpr int groups = ConstraintPool::groups;

  void reserve(int dim, int rows);
  void clear();

  bool active(int row) const { return place_[row] != outside; }
  int base(int group) const { return base_[group]; }  // -1: the group has no row
  const std::vector<int>& columns() const { return column_; }
  // Calls f(row) for every active row: bases, then columns.
  template <class F>
  void each(F&& f) const {
    for (const int r : base_) {
      if (r >= 0) f(r);
    }
    for (const int r : column_) f(r);
  }

  void add_row(int row);
  // An offset is pinned by one row of its group at multiplier 0: any row will do, and
  // the first violated row of the group moves it for free.
  void seat_bases(const ConstraintPool& pool);
  void take_seat(const ConstraintPool& pool, int row);
  // h, z and their norm from split() of the row's difference.
  void append(int row, const Eigen::VectorXd& h, const Eigen::VectorXd& z, double norm);
  void drop(const ConstraintPool& pool, int row);
  // Point and multipliers anew from the factor; rows with a wrong sign are dropped.
  void refine(const ConstraintPool& pool);
  // A working set from a list of rows: dependent ones are left out, then refine().
  void warm(const ConstraintPool& pool, std::span<const int> rows);

  void difference(const ConstraintPool& pool, int row, Eigen::VectorXd& out) const;
  double level(const ConstraintPool& pool, int group) const;  // y_g

  // The step moves these two together and keeps the identities above.
  Eigen::VectorXd q;
  std::vector<double> u;
  DifferenceFactor factor;

 private:
  static constexpr int outside = -2, seated = -1;
  void solve(const ConstraintPool& pool);
  void rebuild(const ConstraintPool& pool, double dependency_tol);

  std::array<int, groups> base_{};
  std::vector<int> column_;  // row behind each column of the factor
  std::vector<int> place_;   // column of each row, seated or outside
  int updates_ = 0;
  Eigen::VectorXd d_, h_, z_, w_;
};

}  // namespace headfit
