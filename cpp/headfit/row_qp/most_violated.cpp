#include "headfit/row_qp/most_violated.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "headfit/simd/packet.hpp"

namespace headfit {

void MostViolated::reserve(int rows) {
  slack_.resize(std::max(slack_.size(), static_cast<std::size_t>(rows + lanes)));
  list_.reserve(static_cast<std::size_t>(rows + lanes));
  list_.clear();
}

// The slack of a constraint, negative if it is violated. An equality is violated on both sides.
double MostViolated::slack(const ConstraintPool& pool, int row, double product) const {
  const double s = pool.sign(row) * (level_[pool.group(row)] - product) - pool.rhs(row);
  return pool.equality(row) ? -std::abs(s) : s;
}

int MostViolated::find(ConstraintPool& pool, const WorkingSet& set, double allowed) {
  for (int g = 0; g < ConstraintPool::groups; ++g) level_[g] = set.level(pool, g);
  int row = worst_listed(pool, set, allowed);
  if (row >= 0) return row;
  using enum ConstraintPool::Precision;
  for (const auto precision : {Single, Double}) {
    const double missed = pool.multiply(set.q, precision);
    if (std::isinf(missed)) continue;
    sweep(pool, set, allowed - missed);
    row = worst_listed(pool, set, allowed);
    if (row >= 0 || list_.empty()) return row;
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
  const int rows = pool.rows();
  for (int r = 0; r < rows; ++r) slack_[r] = slack(pool, r, pool.product(pool.point(r)));
  std::fill_n(slack_.begin() + rows, lanes, ConstraintPool::infinite);
  set.each([&](int r) { slack_[r] = ConstraintPool::infinite; });
  // Equalities enter first. They never leave again, and if they contradict each other, the proof
  // uses only them.
  list_.clear();
  for (int r = 0; r < pool.equalities(); ++r) {
    if (slack_[r] < -allowed) list_.push_back({slack_[r], r});
  }
  if (list_.empty()) list_worst(allowed, pool.equalities(), rows);
}

// Finds the most violated constraint of each lane, and then the worst few of these. This has no
// branches that would be mispredicted.
void MostViolated::list_worst(double allowed, int begin, int end) {
  using simd::pcmp_lt, simd::pselect;
  constexpr int width = static_cast<int>(simd::lanes<double>);
  constexpr int packets = lanes / width;
  std::array<simd::Packet<double>, packets> worst, row, at;
  for (int i = 0; i < packets; ++i) {
    worst[i] = simd::fill<double>(-allowed);
    at[i] = simd::plset<simd::Packet<double>>(begin + i * width);
  }
  row = at;
  for (int r = begin; r < end; r += lanes) {
    for (int i = 0; i < packets; ++i) {
      const auto now = simd::load(slack_.data() + r + i * width);
      const auto worse = pcmp_lt(now, worst[i]);
      row[i] = pselect(worse, at[i], row[i]);
      worst[i] = pselect(worse, now, worst[i]);
      at[i] = simd::padd(at[i], simd::fill<double>(lanes));
    }
  }
  alignas(64) std::array<double, lanes> slacks, rows;
  for (int i = 0; i < packets; ++i) {
    simd::store(slacks.data() + i * width, worst[i]);
    simd::store(rows.data() + i * width, row[i]);
  }
  for (int i = 0; i < lanes; ++i) {
    if (slacks[i] < -allowed) list_.push_back({slacks[i], static_cast<int>(rows[i])});
  }
  if (list_.size() <= few) return;
  std::nth_element(list_.begin(), list_.begin() + few, list_.end(),
                   [](const Row& a, const Row& b) { return a.worse(b); });
  list_.resize(few);
}

}  // namespace headfit
