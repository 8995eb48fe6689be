#include "headfit/row_qp/row_constraints.hpp"

#include <algorithm>
#include <limits>

namespace headfit {

void RowConstraints::start(const KeyView& keys, const RowProblem& problem, int cuts_per_round,
                           int pool_points, DualActiveSet& set) {
  keys_ = keys;
  form_ = problem.form;
  const int dim = static_cast<int>(keys.cols);
  const int support = static_cast<int>(problem.support.size());
  // A working set has at most dim + 2 points off the support. With room for these and for two
  // rounds of cuts there is always an inactive cut to evict.
  const int floor = support + dim + 2 + 2 * cuts_per_round;
  const int wanted = pool_points > 0 ? pool_points : support + 2 * dim + 3 * cuts_per_round;
  capacity_ = std::min<int>(std::max(floor, wanted), static_cast<int>(keys.rows));
  const int rows_a_key = problem.form == RowForm::Tolerance ? 3 : 1;
  const int rows = capacity_ + (rows_a_key - 1) * support;
  set.reserve(dim, capacity_, rows);
  column_of_point_.reserve(capacity_);
  point_of_row_.reserve(rows);
  kind_of_row_.reserve(rows);
  column_of_point_.clear();
  point_of_row_.clear();
  kind_of_row_.clear();
  add_support(problem, set);
}

void RowConstraints::add_support(const RowProblem& problem, DualActiveSet& set) {
  const double half = problem.delta / 2;
  const auto row = [&](int point, int group, double sign, double rhs, ConstraintKind kind) {
    set.add_row(point, group, sign, rhs, kind == ConstraintKind::RatioEqual);
    point_of_row_.push_back(point);
    kind_of_row_.push_back(kind);
  };
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < problem.support.size(); ++i) {
    const double a = problem.log_weights[i];
    const std::int32_t column = problem.support[i];
    least = std::min(least, a);
    const int point = set.add_point(keys_.row(column), keys_.norm(column));
    column_of_point_.push_back(column);
    if (problem.form == RowForm::Equality) {
      row(point, 0, 1.0, -a, ConstraintKind::RatioEqual);
    } else {
      row(point, 0, 1.0, -(a + half), ConstraintKind::RatioUpper);
      row(point, 0, -1.0, a - half, ConstraintKind::RatioLower);
      row(point, 1, -1.0, problem.log_leak, ConstraintKind::Margin);
    }
  }
  outside_rhs_ = problem.form == RowForm::Equality ? problem.log_leak + problem.delta - least : 0.0;
  first_outside_row_ = static_cast<int>(kind_of_row_.size());
}

int RowConstraints::insert(std::int32_t column, DualActiveSet& set) {
  // Compares with all columns, which is vectorized, since nearly every column is new.
  int known = 0;
  for (const std::int32_t c : column_of_point_) known += c == column ? 1 : 0;
  if (known > 0) return -1;
  if (set.pool().points() == capacity_) return evict(column, set);
  const int point = set.add_point(keys_.row(column), keys_.norm(column));
  column_of_point_.push_back(column);
  point_of_row_.push_back(point);
  kind_of_row_.push_back(ConstraintKind::Outside);
  return set.add_row(point, form_ == RowForm::Tolerance ? 1 : 0, 1.0, outside_rhs_);
}

// Replaces the inactive cut with the largest slack. An evicted cut may come back later, but the
// same pool cannot occur again, since the objective rises from round to round.
int RowConstraints::evict(std::int32_t column, DualActiveSet& set) {
  int evicted = -1;
  const auto product = [&](int r) { return set.pool().product(point_of_row_[r]); };
  for (int r = first_outside_row_; r < set.pool().rows(); ++r) {
    if (set.active(r)) continue;
    if (evicted < 0 || product(r) < product(evicted)) evicted = r;
  }
  if (evicted < 0) return -1;
  set.replace_point(point_of_row_[evicted], keys_.row(column), keys_.norm(column));
  column_of_point_[point_of_row_[evicted]] = column;
  return evicted;
}

int RowConstraints::row_of(const Multiplier& term, DualActiveSet& set) {
  if (term.kind == ConstraintKind::Outside) return insert(term.column, set);
  for (int r = 0; r < first_outside_row_; ++r) {
    if (kind_of_row_[r] == term.kind && column_of_point_[point_of_row_[r]] == term.column) return r;
  }
  return -1;
}

Multiplier RowConstraints::term(int row, double signed_multiplier, const DualActiveSet& set) const {
  const double sign = set.pool().equality(row) ? 1.0 : set.pool().sign(row);
  return {kind_of_row_[row], column_of_point_[point_of_row_[row]], sign * signed_multiplier};
}

}  // namespace headfit
