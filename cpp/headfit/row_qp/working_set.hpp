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

#include "headfit/row_qp/constraint_pool.hpp"
#include "headfit/row_qp/difference_factor.hpp"

namespace headfit {

class WorkingSet {
 public:
  static constexpr int groups = ConstraintPool::groups;

  void reserve(int dim, int rows);
  void clear();

  bool active(int row) const { return place_[row] != outside; }
  int base(int group) const { return base_[group]; }  // -1: the group has no row
  const std::vector<int>& columns() const { return column_; }
  int column_of(int row) const { return place_[row]; }  // negative: none
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
  // `split` and `norm` from the factor's split() of the row's difference.
  void append(const ConstraintPool& pool, int row, double multiplier, const Eigen::VectorXd& split,
              double norm);
  void drop(const ConstraintPool& pool, int row);
  bool worn() const { return updates_ > 4 * q.size() + 100; }
  // Point and multipliers anew from the factor; rows with a wrong sign are dropped.
  void refine(const ConstraintPool& pool);
  // A working set from a list of rows: dependent ones are left out, then refine().
  void warm(const ConstraintPool& pool, std::span<const int> rows);

  void difference(const ConstraintPool& pool, int row, Eigen::VectorXd& out) const;
  // The factor's split() of a row's difference with z summed anew from the keys: what the
  // updates of the factor gathered in errors is gone from both halves. Returns |z|.
  double correct(const ConstraintPool& pool, int row, Eigen::VectorXd& split);
  double level(const ConstraintPool& pool, int group) const;  // y_g
  double signed_multiplier(int row) const;                    // 0 unless active
  // Of the columns: the sign of the row (0 for equalities, whose multipliers are free) and
  // whether (1 or 0) it belongs to the group.
  auto sense() const { return sense_.head(factor.size()); }
  auto members(int group) const { return member_.col(group).head(factor.size()); }

  // The step moves these together and keeps the identities above.
  Eigen::VectorXd q;
  Eigen::VectorXd u;                  // a column each
  std::array<double, groups> base_u{};
  DifferenceFactor factor;

 private:
  static constexpr int outside = -2, seated = -1;
  void gather(const ConstraintPool& pool);
  auto differences() const { return differences_.leftCols(factor.size()); }  // as gathered
  void solve(const ConstraintPool& pool);
  void set_column(const ConstraintPool& pool, int column, int row, double multiplier);
  void erase_column(int column);
  void rebuild(const ConstraintPool& pool, double dependency_tol);

  std::array<int, groups> base_{};
  std::vector<int> column_;  // row behind each column of the factor
  std::vector<int> place_;   // column of each row, seated or outside
  int updates_ = 0;
  Eigen::VectorXd sense_;
  Eigen::MatrixXd member_, differences_;
  Eigen::VectorXd d_, x_, z_, w_;
};

}  // namespace headfit
