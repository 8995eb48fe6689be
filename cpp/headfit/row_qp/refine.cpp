// The parts of a working set that recompute its state from the keys, to remove errors of updates.
#include <algorithm>
#include <cmath>

#include "headfit/base/checkpoint.hpp"
#include "headfit/row_qp/working_set.hpp"

namespace headfit {

namespace {
// A refined multiplier has the wrong sign if it is below minus this, relative to the largest.
constexpr double sign_noise = 1e-11;
}  // namespace

void WorkingSet::gather(const ConstraintPool& pool) {
  for (int i = 0; i < factor.size(); ++i) {
    differences_.col(i) = pool.key(column_[i]) - pool.key(base_[pool.group(column_[i])]);
  }
}

double WorkingSet::correct(const ConstraintPool& pool, int row, Eigen::VectorXd& split) {
  gather(pool);
  difference(pool, row, d_);
  auto z = split.head(q.size());
  for (int round = 0; round < 2; ++round) {
    z = d_;
    z.noalias() += differences() * split.segment(q.size(), factor.size());
    factor.project(split);
  }
  return z.norm();
}

// Computes the point of least norm for which every active constraint is an equality, and its
// multipliers, by two rounds of residual correction. This removes the errors that updates have
// gathered.
void WorkingSet::solve(const ConstraintPool& pool) {
  const int columns = factor.size();
  gather(pool);
  for (int i = 0; i < columns; ++i) {
    d_[i] = pool.offset(base_[pool.group(column_[i])]) - pool.offset(column_[i]);
  }
  // Starts from 0, since the old q may have a part outside the span of the active differences,
  // which would stay.
  q.setZero();
  for (int round = 0; round < 2; ++round) {
    w_.head(columns) = d_.head(columns);
    w_.head(columns).noalias() -= differences().transpose() * q;
    factor.add_shortest(w_, q);
  }
  for (int round = 0; round < 2; ++round) {
    z_ = -q;
    z_.noalias() -= differences() * u.head(columns);
    factor.combine(z_, w_);
    u.head(columns) += w_.head(columns);
  }
  for (int g = 0; g < groups; ++g) base_u[g] = -members(g).dot(u.head(columns));
}

void WorkingSet::refine(const ConstraintPool& pool) {
  if (worn()) rebuild(pool, 1e-15);
  Checkpoints pace;
  for (;;) {
    solve(pool);
    pace.after(12 * q.size() * factor.size());
    double largest = 0.0;
    double least = 0.0;
    int wrong = -1;
    each([&](int r) {
      const double multiplier = pool.sign(r) * signed_multiplier(r);
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
  Checkpoints pace;
  int kept = 0;
  for (std::size_t i = 0; i < column_.size(); ++i) {
    const int r = column_[i];
    difference(pool, r, d_);
    const double norm = factor.split(d_, x_);
    pace.after(4 * q.size() * factor.size());
    const double terms = pool.key_norm() * (1.0 + x_.segment(q.size(), factor.size()).lpNorm<1>());
    if (factor.size() == q.size() || norm <= dependency_tol * terms) {
      place_[r] = outside;
      continue;
    }
    set_column(pool, kept, r, u[i]);
    column_[kept++] = r;
    factor.append(x_, norm);
  }
  column_.resize(kept);
  updates_ = 0;
}

void WorkingSet::warm(const ConstraintPool& pool, std::span<const int> rows) {
  for (const int r : rows) {
    if (base_[pool.group(r)] < 0) {
      take_seat(pool, r);
    } else if (column_.size() < static_cast<std::size_t>(q.size()) && !active(r)) {
      u[column_.size()] = 0.0;
      place_[r] = static_cast<int>(column_.size());
      column_.push_back(r);
    }
  }
  seat_bases(pool);
  rebuild(pool, 1e-12);
  refine(pool);
}

}  // namespace headfit
