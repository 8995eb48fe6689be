#include "headfit/row_qp/dual_active_set.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "headfit/simd/packet.hpp"

namespace headfit {

namespace {
// How much the cleaning of a witness may add to its residual, relative to the terms that it sums.
constexpr double witness_noise = 2e-14;
// A rate smaller than this, relative to the largest rate, is rounding noise and never blocks a
// step.
constexpr double rate_noise = 1e-13;
// After d plus this many steps without a measurable rise of |q|, the tolerance is loosened.
constexpr int patience = 40;
constexpr double loosest = 1e3;  // the loosest tolerance, relative to the one asked for
}  // namespace

void MostViolated::reserve(int constraints) {
  slack_.resize(std::max(slack_.size(), static_cast<std::size_t>(constraints + lanes)));
  list_.reserve(static_cast<std::size_t>(constraints + lanes));
  list_.clear();
}

// The slack of a constraint, negative if it is violated. An equality is violated on both sides.
double MostViolated::slack(const ConstraintPool& pool, int constraint, double product) const {
  const double s = pool.sign(constraint) * (free_offset_[pool.group(constraint)] - product) -
                   pool.rhs(constraint);
  return pool.is_equality(constraint) ? -std::abs(s) : s;
}

int MostViolated::find(ConstraintPool& pool, const WorkingSet& set, double allowed) {
  for (int g = 0; g < ConstraintPool::groups; ++g) free_offset_[g] = set.free_offset(pool, g);
  int worst = worst_listed(pool, set, allowed);
  if (worst >= 0) return worst;
  using enum ConstraintPool::Precision;
  for (const auto precision : {Single, Double}) {
    const double missed = pool.multiply(set.q, precision);
    if (std::isinf(missed)) continue;
    sweep(pool, set, allowed - missed);
    worst = worst_listed(pool, set, allowed);
    if (worst >= 0 || list_.empty()) return worst;
  }
  return worst;
}

int MostViolated::worst_listed(const ConstraintPool& pool, const WorkingSet& set,
                               double allowed) const {
  Candidate worst{-allowed, -1};
  for (const auto& [before, constraint] : list_) {
    if (set.active(constraint)) continue;
    const Candidate now{slack(pool, constraint, pool.key(constraint).dot(set.q)), constraint};
    if (now.slack < -allowed && now.is_worse_than(worst)) worst = now;
  }
  return worst.constraint;
}

void MostViolated::sweep(const ConstraintPool& pool, const WorkingSet& set, double allowed) {
  const int count = pool.size();
  for (int i = 0; i < count; ++i) slack_[i] = slack(pool, i, pool.product(pool.key_number(i)));
  std::fill_n(slack_.begin() + count, lanes, ConstraintPool::infinite);
  set.for_each_active([&](int i) { slack_[i] = ConstraintPool::infinite; });
  // Equalities enter first. They never leave again, and if they contradict each other, the proof
  // uses only them.
  list_.clear();
  for (int i = 0; i < pool.equalities(); ++i) {
    if (slack_[i] < -allowed) list_.push_back({slack_[i], i});
  }
  if (list_.empty()) list_worst(allowed, pool.equalities(), count);
}

// Finds the most violated constraint of each lane, and then the worst few of these. This has no
// branches that would be mispredicted.
void MostViolated::list_worst(double allowed, int begin, int end) {
  using simd::pcmp_lt, simd::pselect;
  constexpr int width = static_cast<int>(simd::lanes<double>);
  constexpr int packets = lanes / width;
  alignas(64) std::array<double, lanes> slacks, numbers;
  std::iota(numbers.begin(), numbers.end(), begin);
  std::array<simd::Packet<double>, packets> worst, number, at;
  for (int i = 0; i < packets; ++i) {
    worst[i] = simd::fill<double>(-allowed);
    at[i] = simd::load(numbers.data() + i * width);
  }
  number = at;
  for (int first = begin; first < end; first += lanes) {
    for (int i = 0; i < packets; ++i) {
      const auto now = simd::load(slack_.data() + first + i * width);
      const auto worse = pcmp_lt(now, worst[i]);
      number[i] = pselect(worse, at[i], number[i]);
      worst[i] = pselect(worse, now, worst[i]);
      at[i] = simd::padd(at[i], simd::fill<double>(lanes));
    }
  }
  for (int i = 0; i < packets; ++i) {
    simd::store(slacks.data() + i * width, worst[i]);
    simd::store(numbers.data() + i * width, number[i]);
  }
  for (int i = 0; i < lanes; ++i) {
    if (slacks[i] < -allowed) list_.push_back({slacks[i], static_cast<int>(numbers[i])});
  }
  if (list_.size() <= list_length) return;
  std::nth_element(list_.begin(), list_.begin() + list_length, list_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.is_worse_than(b); });
  list_.resize(list_length);
}

void DualActiveSet::reserve(int dim, int keys, int constraints) {
  pool_.reserve(dim, keys, constraints);
  set_.reserve(dim, constraints);
  if (rate_.size() != dim) {
    for (auto* v : {&d_, &rate_, &length_}) v->setZero(dim);
    x_.setZero(2 * dim);
  }
  ray_.reserve(constraints);
  ray_.clear();
  next_.reserve(constraints);
  steps_ = 0;
}

int DualActiveSet::add(int key, int group, double sign, double rhs, bool is_equality) {
  set_.add_inactive();
  ray_.push_back(0.0);
  return pool_.add(key, group, sign, rhs, is_equality);
}

double DualActiveSet::allowance(double tol, double relative_cap) const {
  const double rhs = pool_.largest_rhs();
  return std::min(tol * (rhs + pool_.largest_norm() * set_.q.norm()), relative_cap * rhs);
}

// Computes how fast the signed multipliers change when that of the entering constraint grows at
// rate sigma.
void DualActiveSet::find_rates(int entering, double sigma) {
  const int columns = set_.factor.size();
  rate_.head(columns) = sigma * x_.segment(pool_.dim(), columns);
  for (int g = 0; g < ConstraintPool::groups; ++g) {
    base_rate_[g] = -set_.members(g).dot(rate_.head(columns));
  }
  base_rate_[pool_.group(entering)] -= sigma;
}

// The ratio test: how long the step can be until the first multiplier of an inequality reaches
// zero. Of several that reach it at once, the one with the largest rate is dropped, which is the
// best conditioned choice.
DualActiveSet::Blocking DualActiveSet::ratio_test() {
  const int columns = set_.factor.size();
  const double largest = rate_.head(columns).lpNorm<Eigen::Infinity>();
  const double noise = rate_noise * std::max(1.0, largest);
  // Divides even where the result is not used: a branch would often be mispredicted, and without
  // one the loop is vectorized.
  const double* signs = set_.column_signs().data();
  const double* u = set_.u.data();
  const double* rates = rate_.data();
  double* lengths = length_.data();
  for (int i = 0; i < columns; ++i) {
    const double rate = signs[i] * rates[i];
    const double length = std::max(0.0, signs[i] * u[i]) / -rate;
    lengths[i] = rate < -noise ? length : ConstraintPool::infinite;
  }
  Blocking blocking;
  double fastest = 0.0;
  const auto test = [&](int constraint, double rate, double length) {
    if (length > blocking.length || (length == blocking.length && rate >= fastest)) return;
    blocking = {constraint, length};
    fastest = rate;
  };
  for (int g = 0; g < ConstraintPool::groups; ++g) {
    const int base = set_.base(g);
    if (base < 0 || pool_.is_equality(base)) continue;
    const double rate = pool_.sign(base) * base_rate_[g];
    if (rate < -noise) test(base, rate, std::max(0.0, pool_.sign(base) * set_.base_u[g]) / -rate);
  }
  const double least = columns == 0 ? ConstraintPool::infinite : length_.head(columns).minCoeff();
  for (int i = 0; i < columns && least < ConstraintPool::infinite; ++i) {
    if (lengths[i] == least) test(set_.columns()[i], signs[i] * rates[i], least);
  }
  return blocking;
}

void DualActiveSet::move(double sigma, double length) {
  const int columns = set_.factor.size();
  set_.q.noalias() -= (length * sigma) * x_.head(pool_.dim());
  set_.u.head(columns) += length * rate_.head(columns);
  for (int g = 0; g < ConstraintPool::groups; ++g) {
    if (set_.base(g) >= 0) set_.base_u[g] += length * base_rate_[g];
  }
}

void DualActiveSet::store_ray(int entering, double sigma) {
  std::fill(ray_.begin(), ray_.end(), 0.0);
  ray_[entering] = sigma;
  for (int i = 0; i < set_.factor.size(); ++i) ray_[set_.columns()[i]] = rate_[i];
  for (int g = 0; g < ConstraintPool::groups; ++g) {
    if (set_.base(g) >= 0) ray_[set_.base(g)] = base_rate_[g];
  }
}

// A bound on the size of the terms in z = d + sum rate_i (difference i).
double DualActiveSet::term_bound() const {
  return pool_.largest_norm() * (1.0 + rate_.head(set_.factor.size()).lpNorm<1>());
}

// Where no multiplier falls, the rates are Farkas multipliers with the residual z: the constraints
// contradict each other. This is reported only if the proof is strong, since a weak one cannot be
// told from rounding noise.
bool DualActiveSet::proves_infeasibility(int entering, double sigma, double slack,
                                         const RowSettings& settings) {
  const double norm = set_.correct(pool_, entering, x_);
  find_rates(entering, sigma);
  const double noise = witness_noise * term_bound();
  const double gap = -slack - noise * (pool_.largest_rhs() / pool_.largest_norm() + set_.q.norm());
  // If all keys are zero, the offsets contradict each other.
  return gap * pool_.largest_norm() >=
             settings.proof_ratio * pool_.largest_rhs() * (norm + noise) ||
         !(pool_.largest_norm() > 0.0);
}

// Brings a violated constraint into the working set. Constraints whose multiplier reaches zero on
// the way are dropped. No more can be dropped than are active, so the loop ends.
DualActiveSet::Step DualActiveSet::step(int entering, const RowSettings& settings, int max_steps) {
  const int group = pool_.group(entering);
  double sigma = pool_.sign(entering);
  double multiplier = 0.0;
  int removed = -1;
  for (bool first = true;; first = false) {
    if (++steps_ > max_steps) return Step::Limit;
    checkpoints_.after(2 * pool_.dim() * (set_.factor.size() + pool_.keys()));
    if (removed < 0) set_.difference(pool_, entering, d_);
    const double gap =
        pool_.active_value(set_.base(group)) - d_.dot(set_.q) - pool_.active_value(entering);
    if (first && pool_.is_equality(entering)) sigma = gap < 0 ? 1.0 : -1.0;
    const double slack = sigma * gap;
    const double norm = removed < 0 ? set_.factor.orthogonalize(d_, x_)
                                    : set_.factor.orthogonalize_after_removal(removed, d_, x_);
    find_rates(entering, sigma);
    // z is what remains of d after the active differences are subtracted. If it is small compared
    // with the terms of that sum, it is rounding noise, and d depends on the active differences.
    const bool dependent =
        set_.factor.size() == pool_.dim() || norm <= settings.dependency_tol * term_bound();
    const Blocking blocking = ratio_test();
    const double full =
        dependent ? ConstraintPool::infinite : std::max(0.0, -slack) / (norm * norm);
    if (dependent && blocking.constraint < 0) {
      if (!proves_infeasibility(entering, sigma, slack, settings)) return Step::Tiny;
      store_ray(entering, sigma);
      return Step::Infeasible;
    }
    const double length = std::min(full, blocking.length);
    move(sigma, length);
    multiplier += length * sigma;
    if (full <= blocking.length) {
      set_.append(pool_, entering, multiplier, x_, norm);
      return Step::Full;
    }
    removed = set_.column_of(blocking.constraint);
    set_.drop(pool_, blocking.constraint);
    if (set_.base(group) < 0) {
      // The dropped base was alone in its group, so its multiplier and that of the entering
      // constraint are zero. Then the latter becomes the base: the free offset moves until it holds,
      // which changes nothing else.
      set_.make_base(pool_, entering);
      return Step::Full;
    }
  }
}

RowStatus DualActiveSet::solve(const RowSettings& settings, int max_steps,
                               const Accuracy& accuracy) {
  set_.choose_bases(pool_);
  double loosened = 1.0;
  double best = set_.q.squaredNorm();
  int idle = 0;
  bool refined = false;
  for (;;) {
    const double allowed = loosened * allowance(settings.feasibility_tol, settings.rhs_tol);
    const int entering =
        next_.find(pool_, set_, std::max(allowed, accuracy.violation * pool_.largest_rhs()));
    if (entering < 0) {
      if (refined || (!accuracy.refine && !set_.needs_rebuild())) return RowStatus::Optimal;
      set_.refine(pool_);
      refined = true;
      continue;
    }
    refined = false;
    const Step outcome = step(entering, settings, max_steps);
    if (outcome == Step::Infeasible) return RowStatus::Infeasible;
    if (outcome == Step::Limit) return RowStatus::IterationLimit;
    if (set_.q.norm() > settings.max_norm) {
      set_.refine(pool_);
      if (set_.q.norm() > settings.max_norm) return RowStatus::NormLimit;
    }
    // In exact arithmetic |q| rises with every step that moves it. If rounding hides the rise for
    // long, the constraints are violated by rounding only, and the tolerance is loosened, within a
    // bound.
    const double now = set_.q.squaredNorm();
    idle = now > best * (1 + 1e-14) ? 0 : idle + 1;
    best = std::max(best, now);
    if (outcome == Step::Tiny || idle > patience + pool_.dim()) {
      set_.refine(pool_);
      loosened *= 10;
      idle = 0;
      if (loosened > loosest) return RowStatus::Stalled;
    }
  }
}

}  // namespace headfit
