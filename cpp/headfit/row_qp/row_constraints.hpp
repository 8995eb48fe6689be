// What the rows of a row's constraint pool stand for: those of the support, which come first,
// and cuts, one for each column that a scan found. A full pool evicts cuts.
#pragma once

#include <span>
#include <vector>

#include "headfit/row_qp/dual_active_set.hpp"
#include "headfit/row_qp/row_problem.hpp"

namespace headfit {

class RowConstraints {
 public:
  // Empties `set`, gives it room and the constraints of the support.
  void start(const KeyView& keys, const RowProblem& problem, int cuts_per_round, int pool_points,
             DualActiveSet& set);
  // The cut of a column: its row, or -1 when it is in the pool already.
  int insert(std::int32_t column, DualActiveSet& set);
  // The row of an earlier multiplier, inserted if it is a cut; -1: there is none.
  int row_of(const Multiplier& term, DualActiveSet& set);
  // The solver's signed multiplier of a row as one of the constraint in its own sense.
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
