#include "headfit/row_qp/dual_active_set.hpp"

#include <algorithm>
#include <cmath>

namespace headfit {

namespace {
// How much the cleaning of a witness may add to its residual, relative to the terms that it sums.
constexpr double witness_noise = 2e-14;
// After d plus this many steps without a measurable rise of |q|, the tolerance is loosened.
constexpr int patience = 40;
constexpr double loosest = 1e3;  // the loosest tolerance, relative to the one asked for
}  // namespace

void DualActiveSet::reserve(int dim, int points, int rows) {
  pool_.reserve(dim, points, rows);
  set_.reserve(dim, rows);
  if (rate_.size() != dim) {
    for (auto* v : {&d_, &rate_, &length_}) v->setZero(dim);
    split_.setZero(2 * dim);
  }
  ray_.reserve(rows);
  ray_.clear();
  next_.reserve(rows);
  steps_ = 0;
}

int DualActiveSet::add_row(int point, int group, double sign, double rhs, bool equality) {
  const int r = pool_.add_row(point, group, sign, rhs, equality);
  set_.add_row(r);
  ray_.push_back(0.0);
  return r;
}

double DualActiveSet::allowance(double tol, double relative_cap) const {
  const double size = pool_.rhs_size();
  return std::min(tol * (size + pool_.key_norm() * set_.q.norm()), relative_cap * size);
}

// Computes how fast the signed multipliers change when that of constraint p grows at rate sigma.
void DualActiveSet::find_rates(int p, double sigma) {
  const int columns = set_.factor.size();
  rate_.head(columns) = sigma * split_.segment(pool_.dim(), columns);
  for (int g = 0; g < ConstraintPool::groups; ++g) {
    base_rate_[g] = -set_.members(g).dot(rate_.head(columns));
  }
  base_rate_[pool_.group(p)] -= sigma;
}

void DualActiveSet::move(double sigma, double length) {
  const int columns = set_.factor.size();
  set_.q.noalias() -= (length * sigma) * split_.head(pool_.dim());
  set_.u.head(columns) += length * rate_.head(columns);
  for (int g = 0; g < ConstraintPool::groups; ++g) {
    if (set_.base(g) >= 0) set_.base_u[g] += length * base_rate_[g];
  }
}

void DualActiveSet::keep_ray(int p, double sigma) {
  std::fill(ray_.begin(), ray_.end(), 0.0);
  ray_[p] = sigma;
  for (int i = 0; i < set_.factor.size(); ++i) ray_[set_.columns()[i]] = rate_[i];
  for (int g = 0; g < ConstraintPool::groups; ++g) {
    if (set_.base(g) >= 0) ray_[set_.base(g)] = base_rate_[g];
  }
}

// A bound on the size of the terms in z = d + sum rate_i (difference i).
double DualActiveSet::combined_size() const {
  return pool_.key_norm() * (1.0 + rate_.head(set_.factor.size()).lpNorm<1>());
}

// Brings a violated constraint into the working set. Constraints whose multiplier reaches zero on
// the way are dropped. No more can be dropped than are active, so the loop ends.
DualActiveSet::Step DualActiveSet::step(int p, const RowSettings& settings, int max_steps) {
  const int group = pool_.group(p);
  double sigma = pool_.sign(p);
  double multiplier = 0.0;
  int removed = -1;
  for (bool first = true;; first = false) {
    if (++steps_ > max_steps) return Step::Limit;
    pace_.after(2 * pool_.dim() * (set_.factor.size() + pool_.points()));
    if (removed < 0) set_.difference(pool_, p, d_);
    const double gap = pool_.offset(set_.base(group)) - d_.dot(set_.q) - pool_.offset(p);
    if (first && pool_.equality(p)) sigma = gap < 0 ? 1.0 : -1.0;
    const double s = sigma * gap;
    double norm = removed < 0 ? set_.factor.split(d_, split_)
                              : set_.factor.split_after_remove(removed, d_, split_);
    find_rates(p, sigma);
    // z is what remains of d after the active differences are subtracted. If it is small compared
    // with the terms of that sum, it is rounding noise, and d depends on the active differences.
    const bool dependent =
        set_.factor.size() == pool_.dim() || norm <= settings.dependency_tol * combined_size();
    const Block block = ratio_test();
    const double full = dependent ? ConstraintPool::infinite : std::max(0.0, -s) / (norm * norm);

    if (dependent && block.row < 0) {
      // No multiplier falls, so the rates are Farkas multipliers with the residual z: the
      // constraints contradict each other. This is reported only if the proof is strong, since a
      // weak one cannot be told from rounding noise.
      norm = set_.correct(pool_, p, split_);
      find_rates(p, sigma);
      const double noise = witness_noise * combined_size();
      const double sure = -s - noise * (pool_.rhs_size() / pool_.key_norm() + set_.q.norm());
      if (!(sure * pool_.key_norm() >= settings.proof_ratio * pool_.rhs_size() * (norm + noise))) {
        // If all keys are zero, the offsets contradict each other.
        if (pool_.key_norm() > 0.0) return Step::Tiny;
      }
      keep_ray(p, sigma);
      return Step::Infeasible;
    }
    const double length = std::min(full, block.length);
    move(sigma, length);
    multiplier += length * sigma;
    if (full <= block.length) {
      set_.append(pool_, p, multiplier, split_, norm);
      return Step::Full;
    }
    removed = set_.column_of(block.row);
    set_.drop(pool_, block.row);
    if (set_.base(group) < 0) {
      // The dropped base was alone in its group, so its multiplier and that of p are zero. Then p
      // becomes the base: the free offset moves until p holds, which changes nothing else.
      set_.take_seat(pool_, p);
      return Step::Full;
    }
  }
}

RowStatus DualActiveSet::solve(const RowSettings& settings, int max_steps, const Effort& effort) {
  set_.seat_bases(pool_);
  double loosened = 1.0;
  double best = set_.q.squaredNorm();
  int idle = 0;
  bool refined = false;
  for (;;) {
    const double allowed = loosened * allowance(settings.feasibility_tol, settings.rhs_tol);
    const int p = next_.find(pool_, set_, std::max(allowed, effort.leave * pool_.rhs_size()));
    if (p < 0) {
      if (refined || (!effort.refine && !set_.worn())) return RowStatus::Optimal;
      set_.refine(pool_);
      refined = true;
      continue;
    }
    refined = false;
    const Step outcome = step(p, settings, max_steps);
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
