#include "headfit/learned/gradient.hpp"

namespace headfit::learned {

Gradient::Gradient(const Requirements& required, const Lists& lists)
    : required_(required),
      lists_(lists),
      force_(static_cast<std::size_t>(required.target().nonzeros() + required.n() * lists.cap())),
      pull_(force_.size()) {}

Gradient::QueryState Gradient::query(Index i, const PaddedRows& q, const PaddedRows& k,
                                     float weight, float rounding, RowScratch& scratch) {
  RowSums& sums = scratch.sums;
  sums.clear();
  const auto support = required_.support(i);
  if (support.empty()) return {0, true};
  const float inverse = 1.0f / static_cast<float>(support.size());
  float* mean = scratch.mean.data();
  std::fill(scratch.mean.begin(), scratch.mean.end(), 0.0f);
  for (const Column j : support) add_scaled(inverse, k.row(j), mean, k.width());
  const SupportState state = required_.support_state(i, q.row(i), k, scratch.logits.data());
  const float hinge = required_.hinge(i, state);
  const float share = lists_.share(i);

  const Entry first = lists_.first(i);
  const auto others = static_cast<Entry>(first + support.size());
  const auto last = static_cast<Entry>(first + lists_.size(i));
  float hinge_sum = 0, loss = 0, top = -std::numeric_limits<float>::infinity();
  for (Entry e = others; e < last; ++e) {
    const float* key = k.row(lists_.column(e));
    const float logit = dot(q.row(i), key, k.width());
    const float excess = logit - hinge;
    top = std::max(top, logit);
    force_[e] = pull_[e] = 0;
    if (excess <= 0) {
      loss += bound_size(logit, weight * share, share, key, e, sums);
      continue;
    }
    hinge_sum += share * excess;
    loss += share * excess * excess;
    force_[e] = weight * share * excess;
    pull_[e] = weight * share;
    sums.add(key, mean, share * excess, share);
  }
  for (std::size_t a = 0; a < support.size(); ++a) {
    const float residual = scratch.logits[a] - required_.log_weights(i)[a] - state.centre;
    const auto e = static_cast<Entry>(first + a);
    loss += residual * residual;
    force_[e] = weight * (residual - inverse * hinge_sum);
    pull_[e] = weight * (1 - inverse);
    sums.add(k.row(support[a]), mean, residual, 1.0f);
    loss += bound_size(scratch.logits[a], weight, 1.0f, k.row(support[a]), e, sums);
  }
  sums.finish();
  const float slack = 2 * rounding;
  const bool in_bounds = std::max(state.highest, -state.lowest) + slack <= required_.max_logit();
  return {loss / 2, in_bounds && state.spread + slack <= required_.spread_limit() &&
                        top + slack <= state.lowest - required_.log_inverse_leak()};
}

// Adds what a logit beyond the bound on |logit| contributes. This bound is about the logit itself,
// not about its distance from the support's.
float Gradient::bound_size(float logit, float pull_on_key, float share, const float* key, Entry e,
                           RowSums& sums) {
  const float beyond = std::abs(logit) - required_.logit_hinge();
  if (!(beyond > 0)) return 0;
  const float force = std::copysign(beyond, logit);
  force_[e] += pull_on_key * force;
  pull_[e] += pull_on_key;
  sums.add(key, share * force, share);
  return share * beyond * beyond;
}

void Gradient::key(Index j, const PaddedRows& q, RowScratch& scratch) const {
  scratch.sums.clear();
  for (const Lists::Source& source : lists_.sources(j)) {
    const float pull = pull_[source.entry];
    const float force = force_[source.entry];
    if (pull == 0 && force == 0) continue;
    scratch.sums.add(q.row(source.row), force, pull);
  }
  scratch.sums.finish();
}

}  // namespace headfit::learned
