// What the constraints in a row's pool mean. Those of the support come first, followed by cuts, one
// for each column that a scan found. When the pool is full, cuts are evicted.
#pragma once

#include <span>
#include <vector>

#include "headfit/row_qp/dual_active_set.hpp"
#include "headfit/row_qp/row_problem.hpp"

namespace headfit {

class RowConstraints {
 public:
  // Clears `set`, reserves memory, and adds the constraints of the support.
  void start(const KeyView& keys, const RowProblem& problem, int cuts_per_round, int pool_points,
             DualActiveSet& set);
  // Adds the cut of a column. Returns its place in the pool, or -1 if the pool has it already.
  int insert(std::int32_t column, DualActiveSet& set);
  // The place of the constraint of an earlier multiplier; cuts are added. Returns -1 if there is no
  // such constraint.
  int row_of(const Multiplier& term, DualActiveSet& set);
  // Translates the solver's signed multiplier to one of the constraint as it is written in
  // row_problem.hpp.
  Multiplier term(int row, double signed_multiplier, const DualActiveSet& set) const;
  double outside_rhs() const { return outside_rhs_; }

 private:
  void add_support(const RowProblem& problem, DualActiveSet& set);
  int evict(std::int32_t column, DualActiveSet& set);

  KeyView keys_;
  RowForm form_ = RowForm::Tolerance;
  int capacity_ = 0, first_outside_row_ = 0;
  double outside_rhs_ = 0.0;
  std::vector<std::int32_t> column_of_point_;
  std::vector<int> point_of_row_;
  std::vector<ConstraintKind> kind_of_row_;
};

}  // namespace headfit
