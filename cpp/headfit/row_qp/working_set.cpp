#include "headfit/row_qp/working_set.hpp"

#include <algorithm>

namespace headfit {

void WorkingSet::reserve(int dim, int rows) {
  if (q.size() != dim) {
    for (auto* v : {&q, &u, &sense_, &d_, &z_, &w_}) v->setZero(dim);
    x_.setZero(2 * dim);
    member_.setZero(dim, groups);
    differences_.resize(dim, dim);
    column_.reserve(dim);
  }
  factor.reserve(dim);
  place_.reserve(rows);
  clear();
}

void WorkingSet::clear() {
  base_.fill(-1);
  base_u.fill(0.0);
  column_.clear();
  place_.clear();
  factor.clear();
  q.setZero();
  updates_ = 0;
}

void WorkingSet::add_row(int) { place_.push_back(outside); }

void WorkingSet::seat_bases(const ConstraintPool& pool) {
  for (int r = 0; r < pool.rows(); ++r) {
    if (base_[pool.group(r)] < 0) take_seat(pool, r);
  }
}

void WorkingSet::take_seat(const ConstraintPool& pool, int row) {
  base_[pool.group(row)] = row;
  base_u[pool.group(row)] = 0.0;
  place_[row] = seated;
}

double WorkingSet::signed_multiplier(int row) const {
  if (place_[row] >= 0) return u[place_[row]];
  for (int g = 0; g < groups; ++g) {
    if (base_[g] == row) return base_u[g];
  }
  return 0.0;
}

void WorkingSet::set_column(const ConstraintPool& pool, int column, int row, double multiplier) {
  place_[row] = column;
  u[column] = multiplier;
  sense_[column] = pool.equality(row) ? 0.0 : pool.sign(row);
  for (int g = 0; g < groups; ++g) member_(column, g) = pool.group(row) == g;
}

void WorkingSet::append(const ConstraintPool& pool, int row, double multiplier,
                        const Eigen::VectorXd& split, double norm) {
  set_column(pool, factor.size(), row, multiplier);
  column_.push_back(row);
  factor.append(split, norm);
  ++updates_;
}

void WorkingSet::erase_column(int column) {
  factor.remove(column);
  column_.erase(column_.begin() + column);
  const auto close = [&](double* x) {
    std::copy(x + column + 1, x + factor.size() + 1, x + column);
  };
  close(u.data());
  close(sense_.data());
  for (int g = 0; g < groups; ++g) close(member_.col(g).data());
  for (int i = column; i < factor.size(); ++i) place_[column_[i]] = i;
  ++updates_;
}

// If the base of a group is dropped, the first column of the group becomes its base. The column is
// subtracted from the other columns of the group in the factor, which makes them differences to the
// new base.
void WorkingSet::drop(const ConstraintPool& pool, int row) {
  int column = place_[row];
  if (column == seated) {
    const int g = pool.group(row);
    base_[g] = -1;
    for (int i = 0; i < factor.size(); ++i) {
      if (pool.group(column_[i]) != g) continue;
      if (base_[g] < 0) {
        base_[g] = column_[i];
        base_u[g] = u[i];
        column = i;
      } else {
        factor.subtract(i, column);
      }
    }
    if (base_[g] >= 0) place_[base_[g]] = seated;
  }
  place_[row] = outside;
  if (column >= 0) erase_column(column);
}

void WorkingSet::difference(const ConstraintPool& pool, int row, Eigen::VectorXd& out) const {
  out = pool.key(row) - pool.key(base_[pool.group(row)]);
}

double WorkingSet::level(const ConstraintPool& pool, int group) const {
  const int r = base_[group];
  return r < 0 ? 0.0 : pool.offset(r) + pool.key(r).dot(q);
}

}  // namespace headfit
