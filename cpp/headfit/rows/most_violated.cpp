#include "headfit/rows/most_violated.hpp"

#include <algorithm>
#include <cmath>

namespace headfit {

void MostViolated::reserve() {
  list_.reserve(few);
  list_.clear();
}

// Negative where the row is violated; an equality is so on both sides.
double MostViolated::slack(const ConstraintPool& pool, int row, double product) const {
  const double s = pool.sign(row) * (level_[pool.group(row)] - product) - pool.rhs(row);
  return pool.equality(row) ? -std::abs(s) : s;
}

int MostViolated::find(ConstraintPool& pool, const WorkingSet& set, double allowed) {
  for (int g = 0; g < ConstraintPool::groups; ++g) level_[g] = set.level(pool, g);
  int row = worst_listed(pool, set, allowed);
  if (row >= 0) return row;
  for (const auto precision : {ConstraintPool::Precision::Single, ConstraintPool::Precision::Double}) {
    const double missed = pool.multiply(set.q, precision);
    if (std::isinf(missed)) continue;
    sweep(pool, set, allowed - missed);
    row = worst_listed(pool, set, allowed);
    // A list that is not full holds all that may be violated.
    if (row >= 0 || list_.size() < few) return row;
  }
  return row;
}

int MostViolated::worst_listed(const ConstraintPool& pool, const WorkingSet& set,
                               double allowed) const {
  Row worst{-allowed, -1};
  for (const Row& listed : list_) {
    if (set.active(listed.row)) continue;
    const Row now{slack(pool, listed.row, pool.key(listed.row).dot(set.q)), listed.row};
    if (now.slack < -allowed && now.worse(worst)) worst = now;
  }
  return worst.row;
}

void MostViolated::sweep(const ConstraintPool& pool, const WorkingSet& set, double allowed) {
  list_.clear();
  // Equalities go first: they never leave, and inconsistent ones are then proved so by themselves.
  sweep(pool, set, allowed, 0, pool.equalities());
  if (list_.empty()) sweep(pool, set, allowed, pool.equalities(), pool.rows());
}

void MostViolated::sweep(const ConstraintPool& pool, const WorkingSet& set, double allowed,
                         int begin, int end) {
  double bound = -allowed;
  for (int r = begin; r < end; ++r) {
    const double s = slack(pool, r, pool.product(pool.point(r)));
    if (s >= bound || set.active(r)) continue;
    if (list_.size() < few) list_.push_back({s, r});
    else *std::min_element(list_.begin(), list_.end(), milder) = {s, r};
    if (list_.size() == few) bound = std::min_element(list_.begin(), list_.end(), milder)->slack;
  }
}

}  // namespace headfit
