#include "headfit/rows/working_set.hpp"

#include <algorithm>
#include <cmath>

namespace headfit {

namespace {
// A refined multiplier below minus this share of the largest has the wrong sign.
constexpr double sign_noise = 1e-11;
}  // namespace

void WorkingSet::reserve(int dim, int rows) {
  if (q.size() != dim) {
    for (auto* v : {&q, &d_, &h_, &z_, &w_}) v->setZero(dim);
    column_.reserve(dim);
  }
  factor.reserve(dim);
  u.reserve(rows);
  place_.reserve(rows);
  clear();
}

void WorkingSet::clear() {
  base_.fill(-1);
  column_.clear();
  place_.clear();
  u.clear();
  factor.clear();
  q.setZero();
  updates_ = 0;
}

void WorkingSet::add_row(int) {
  place_.push_back(outside);
  u.push_back(0.0);
}

void WorkingSet::seat_bases(const ConstraintPool& pool) {
  for (int r = 0; r < pool.rows(); ++r) {
    if (base_[pool.group(r)] < 0) take_seat(pool, r);
  }
}

void WorkingSet::take_seat(const ConstraintPool& pool, int row) {
  base_[pool.group(row)] = row;
  place_[row] = seated;
  u[row] = 0.0;
}

void WorkingSet::append(int row, const Eigen::VectorXd& h, const Eigen::VectorXd& z, double norm) {
  place_[row] = factor.size();
  column_.push_back(row);
  factor.append(h, z, norm);
  ++updates_;
}

// A base hands its seat to the first column of its group, whose own column is then
// subtracted from the group's others: the differences change base within the factor.
void WorkingSet::drop(const ConstraintPool& pool, int row) {
  int column = place_[row];
  if (column == seated) {
    const int g = pool.group(row);
    base_[g] = -1;
    for (int i = 0; i < factor.size(); ++i) {
      if (pool.group(column_[i]) != g) continue;
      if (base_[g] < 0) {
        base_[g] = column_[i];
        column = i;
      } else {
        factor.subtract(i, column);
      }
    }
    if (base_[g] >= 0) place_[base_[g]] = seated;
  }
  place_[row] = outside;
  u[row] = 0.0;
  if (column < 0) return;
  factor.remove(column);
  column_.erase(column_.begin() + column);
  for (int i = column; i < factor.size(); ++i) place_[column_[i]] = i;
  ++updates_;
}

void WorkingSet::difference(const ConstraintPool& pool, int row, Eigen::VectorXd& out) const {
  out = pool.key(row) - pool.key(base_[pool.group(row)]);
}

double WorkingSet::level(const ConstraintPool& pool, int group) const {
  const int r = base_[group];
  return r < 0 ? 0.0 : pool.offset(r) + pool.key(r).dot(q);
}

// The least-norm point with every active row an equality, and its multipliers, by
// rounds of residual correction: errors gathered by the updates are gone after it.
void WorkingSet::solve(const ConstraintPool& pool) {
  const int columns = factor.size();
  // From 0, not from the old q: what that holds outside the span would stay.
  q.setZero();
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < columns; ++i) {
      const int r = column_[i];
      difference(pool, r, d_);
      w_[i] = pool.offset(base_[pool.group(r)]) - pool.offset(r) - d_.dot(q);
    }
    factor.solve_rt(w_);
    q.noalias() += factor.q() * w_.head(columns);
  }
  for (int round = 0; round < 2; ++round) {
    z_ = -q;
    for (const int r : column_) {
      difference(pool, r, d_);
      z_.noalias() -= u[r] * d_;
    }
    w_.head(columns).noalias() = factor.q().transpose() * z_;
    factor.solve_r(w_);
    for (int i = 0; i < columns; ++i) u[column_[i]] += w_[i];
  }
  for (int g = 0; g < groups; ++g) {
    if (base_[g] < 0) continue;
    double sum = 0.0;
    for (const int r : column_) {
      if (pool.group(r) == g) sum += u[r];
    }
    u[base_[g]] = -sum;
  }
}

void WorkingSet::refine(const ConstraintPool& pool) {
  if (updates_ > 4 * q.size() + 100) rebuild(pool, 1e-15);
  for (;;) {
    solve(pool);
    double largest = 0.0;
    double least = 0.0;
    int wrong = -1;
    each([&](int r) {
      const double multiplier = pool.sign(r) * u[r];
      largest = std::max(largest, std::abs(multiplier));
      if (pool.equality(r) || multiplier >= least) return;
      least = multiplier;
      wrong = r;
    });
    if (wrong < 0 || least >= -sign_noise * largest) return;
    drop(pool, wrong);
    seat_bases(pool);
  }
}

void WorkingSet::rebuild(const ConstraintPool& pool, double dependency_tol) {
  factor.clear();
  std::size_t kept = 0;
  for (const int r : column_) {
    difference(pool, r, d_);
    const double norm = factor.split(d_, h_, z_);
    w_.head(factor.size()) = h_.head(factor.size());
    factor.solve_r(w_);
    const double terms = pool.key_norm() * (1.0 + w_.head(factor.size()).lpNorm<1>());
    if (factor.size() == q.size() || norm <= dependency_tol * terms) {
      place_[r] = outside;
      u[r] = 0.0;
      continue;
    }
    place_[r] = factor.size();
    column_[kept++] = r;
    factor.append(h_, z_, norm);
  }
  column_.resize(kept);
  updates_ = 0;
}

void WorkingSet::warm(const ConstraintPool& pool, std::span<const int> rows) {
  for (const int r : rows) {
    if (base_[pool.group(r)] < 0) {
      take_seat(pool, r);
    } else if (column_.size() < static_cast<std::size_t>(q.size()) && !active(r)) {
      place_[r] = static_cast<int>(column_.size());
      column_.push_back(r);
    }
  }
  seat_bases(pool);
  rebuild(pool, 1e-12);
  refine(pool);
}

}  // namespace headfit
