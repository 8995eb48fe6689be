#include "headfit/rows/most_violated.hpp"

#include <algorithm>
#include <cmath>

namespace headfit {

void MostViolated::reserve() {
  list_.reserve(few);
  list_.clear();
}

void MostViolated::set_levels(const ConstraintPool& pool, const WorkingSet& set) {
  for (int g = 0; g < ConstraintPool::groups; ++g) level_[g] = set.level(pool, g);
}

// Negative where the row is violated; an equality is so on both sides.
double MostViolated::slack(const ConstraintPool& pool, int row, double product) const {
  const double s = pool.sign(row) * (level_[pool.group(row)] - product) - pool.rhs(row);
  return pool.equality(row) ? -std::abs(s) : s;
}

int MostViolated::find(ConstraintPool& pool, const WorkingSet& set, double allowed) {
  set_levels(pool, set);
  const int row = worst_listed(pool, set, allowed);
  if (row >= 0) return row;
  sweep(pool, set, allowed);
  const auto worst = std::min_element(list_.begin(), list_.end(), worse);
  return worst == list_.end() ? -1 : worst->row;
}

int MostViolated::worst_listed(const ConstraintPool& pool, const WorkingSet& set,
                               double allowed) const {
  Row worst{-allowed, -1};
  for (const Row& listed : list_) {
    if (set.active(listed.row)) continue;
    const Row now{slack(pool, listed.row, pool.key(listed.row).dot(set.q)), listed.row};
    if (now.slack < -allowed && worse(now, worst)) worst = now;
  }
  return worst.row;
}

void MostViolated::sweep(ConstraintPool& pool, const WorkingSet& set, double allowed) {
  pool.multiply(set.q);
  list_.clear();
  bool equalities = false;
  double bound = -allowed;
  for (int r = 0; r < pool.rows(); ++r) {
    const double s = slack(pool, r, pool.product(pool.point(r)));
    const bool equality = pool.equality(r);
    // Equalities go first: they never leave, and inconsistent ones are then proved so
    // by themselves.
    if (equality == equalities ? s >= bound : !equality || s >= -allowed) continue;
    if (set.active(r)) continue;
    if (equality != equalities) {
      list_.clear();
      bound = -allowed;
    }
    equalities = equality;
    if (list_.size() == few) {
      std::pop_heap(list_.begin(), list_.end(), worse);
      list_.pop_back();
    }
    list_.push_back({s, r});
    std::push_heap(list_.begin(), list_.end(), worse);
    if (list_.size() == few) bound = list_.front().slack;
  }
}

}  // namespace headfit
