#include "headfit/learned/row_steps.hpp"

#include <bit>
#include <cmath>

#include "headfit/descent/cholesky.hpp"

namespace headfit::learned {
namespace {

// The index of entry (a, b), b <= a, in a lower triangle of vectors.
Index at(Index a, Index b) { return (a * (a + 1) / 2 + b) * lanes; }

Pack product_taken(const Pack& v, const float* x, const float* y) {  // v - x y
  return simd::psub(v, simd::pmul(simd::load(x), simd::load(y)));
}

// H = L L^T in place, with reciprocals on the diagonal.
void factor(Index dim, const Pack& smallest_pivot, float* h) {
  const auto entry = [h](Index a, Index b) { return simd::load(h + at(a, b)); };
  descent::cholesky(dim, entry, entry, [&](Index a, Index b, const Pack& v) {
    simd::store(h + at(a, b),
                a == b ? simd::pdiv(simd::fill(1.0f), simd::psqrt(simd::pmax(v, smallest_pivot)))
                       : simd::pmul(v, entry(b, b)));
  });
}

// y = (L L^T)^-1 y; returns the sum of its squares.
Pack solve_factored(Index dim, const float* h, float* y) {
  for (Index a = 0; a < dim; ++a) {
    Pack v = simd::load(y + a * lanes);
    for (Index c = 0; c < a; ++c) v = product_taken(v, h + at(a, c), y + c * lanes);
    simd::store(y + a * lanes, simd::pmul(v, simd::load(h + at(a, a))));
  }
  Pack squares = simd::fill(0.0f);
  for (Index a = dim - 1; a >= 0; --a) {
    Pack v = simd::load(y + a * lanes);
    for (Index c = a + 1; c < dim; ++c) v = product_taken(v, h + at(c, a), y + c * lanes);
    v = simd::pmul(v, simd::load(h + at(a, a)));
    simd::store(y + a * lanes, v);
    squares = simd::pmadd(v, v, squares);
  }
  return squares;
}

// Updates an exponential moving average, average = memory * average + (1 - memory) * x, and returns
// it corrected for its start at zero.
Pack averaged(float* average, float memory, float correction, const float* x) {
  const Pack v = simd::pmadd(simd::fill(memory), simd::load(average),
                             simd::pmul(simd::fill(1 - memory), simd::load(x)));
  simd::store(average, v);
  return simd::pmul(simd::fill(correction), v);
}

// The same for `count` averages that are stored as bfloat16. Replaces x by what the function above
// returns.
void average_short(std::uint16_t* average, float memory, float correction, Index count, float* x) {
  for (Index t = 0; t < count; ++t) {
    const float before = std::bit_cast<float>(std::uint32_t(average[t]) << 16);
    const float now = memory * before + (1 - memory) * x[t];
    const auto bits = std::bit_cast<std::uint32_t>(now);  // rounded to nearest, ties to even
    average[t] = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    x[t] = correction * now;
  }
}

float start_correction(float memory, Index age) {
  return 1 / (1 - std::pow(memory, static_cast<float>(age)));
}

}  // namespace

Gradient::Gradient(const Requirements& required, const CandidateLists& lists)
    : required_(required), lists_(lists), force_(lists.slots()), pull_(force_.size()) {}

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

  const Slot first = lists_.first(i);
  auto next = static_cast<Slot>(first + support.size());
  constexpr float infinity = std::numeric_limits<float>::infinity();
  float hinge_sum = 0, loss = 0, top = -infinity, bottom = infinity;
  for (const Column j : lists_.others(i)) {
    const Slot slot = next++;
    const float* key = k.row(j);
    const float logit = dot(q.row(i), key, k.width());
    const float excess = logit - hinge;
    top = std::max(top, logit);
    bottom = std::min(bottom, logit);
    force_[slot] = pull_[slot] = 0;
    if (excess <= 0) {
      loss += pull_back(logit, weight * share, share, key, slot, sums);
      continue;
    }
    hinge_sum += share * excess;
    loss += share * excess * excess;
    force_[slot] = weight * share * excess;
    pull_[slot] = weight * share;
    sums.add(key, mean, share * excess, share);
  }
  for (std::size_t a = 0; a < support.size(); ++a) {
    const float residual = scratch.logits[a] - required_.log_weights(i)[a] - state.centre;
    const auto slot = static_cast<Slot>(first + a);
    loss += residual * residual;
    force_[slot] = weight * (residual - inverse * hinge_sum);
    pull_[slot] = weight * (1 - inverse);
    sums.add(k.row(support[a]), mean, residual, 1.0f);
    loss += pull_back(scratch.logits[a], weight, 1.0f, k.row(support[a]), slot, sums);
  }
  sums.finish();
  const float slack = 2 * rounding;
  const float largest = std::max(state.highest, -std::min(state.lowest, bottom));
  const bool in_bounds = largest + rounding <= required_.max_logit();
  return {loss / 2, in_bounds && state.spread + slack <= required_.spread_limit() &&
                        top + slack <= state.lowest - required_.log_inverse_leak()};
}

// Adds what a logit beyond the bound on |logit| contributes. This bound is about the logit itself,
// not about its distance from the support's.
float Gradient::pull_back(float logit, float pull_on_key, float share, const float* key, Slot slot,
                          RowSums& sums) {
  const float beyond = std::abs(logit) - required_.logit_hinge();
  if (!(beyond > 0)) return 0;
  const float force = std::copysign(beyond, logit);
  force_[slot] += pull_on_key * force;
  pull_[slot] += pull_on_key;
  sums.add(key, share * force, share);
  return share * beyond * beyond;
}

void Gradient::key(Index j, const PaddedRows& q, RowScratch& scratch) const {
  scratch.sums.clear();
  for (const CandidateLists::Source& source : lists_.sources(j)) {
    const float pull = pull_[source.slot];
    const float force = force_[source.slot];
    if (pull == 0 && force == 0) continue;
    scratch.sums.add(q.row(source.row), force, pull);
  }
  scratch.sums.finish();
}

void LaneScratch::take(Index dim, Index lane, const RowSums& sums) {
  float* h = curvature.data() + lane;
  for (Index a = 0; a < dim; ++a) {
    gradient[static_cast<std::size_t>(a * lanes + lane)] = sums.gradient(a);
    const float* row = sums.curvature_row(a);
    for (Index b = 0; b <= a; ++b, h += lanes) *h = row[b];
  }
}

BlockSteps::BlockSteps(Index n, Index dim, const Settings& settings)
    : blocks_((n + lanes - 1) / lanes),
      dim_(dim),
      triangle_(dim * (dim + 1) / 2),
      damping_(settings.damping),
      momentum_(static_cast<std::size_t>(blocks_ * dim * lanes)) {
  const auto entries = static_cast<std::size_t>(blocks_ * triangle_ * lanes);
  if (settings.short_curvature) {
    short_curvature_.resize(entries);
  } else {
    curvature_.resize(entries);
  }
}

void BlockSteps::forget() {
  std::fill(momentum_.begin(), momentum_.end(), 0.0f);
  std::fill(curvature_.begin(), curvature_.end(), 0.0f);
  std::fill(short_curvature_.begin(), short_curvature_.end(), std::uint16_t(0));
}

// Replaces the curvatures of a block by their averages.
void BlockSteps::average_curvature(Index block, float correction, float* h) {
  const Index count = triangle_ * lanes;
  if (!short_curvature_.empty()) {
    average_short(short_curvature_.data() + block * count, Settings::curvature_memory, correction,
                  count, h);
    return;
  }
  float* average = curvature_.data() + block * count;
  for (Index t = 0; t < count; t += lanes) {
    simd::store(h + t, averaged(average + t, Settings::curvature_memory, correction, h + t));
  }
}

void BlockSteps::solve(Index block, float length, Index age, LaneScratch& scratch) {
  float* h = scratch.curvature.data();
  float* y = scratch.step.data();
  average_curvature(block, start_correction(Settings::curvature_memory, age), h);
  Pack trace = simd::fill(0.0f);
  for (Index a = 0; a < dim_; ++a) trace = simd::padd(trace, simd::load(h + at(a, a)));
  const Pack damping = simd::pmadd(simd::fill(damping_ / static_cast<float>(dim_)), trace,
                                   simd::fill(Settings::curvature_floor));
  for (Index a = 0; a < dim_; ++a) {
    simd::store(h + at(a, a), simd::padd(simd::load(h + at(a, a)), damping));
  }
  factor(dim_, simd::pmul(simd::fill(1e-6f), damping), h);

  float* momentum = momentum_.data() + block * dim_ * lanes;
  const float y_correction = start_correction(Settings::momentum_memory, age);
  for (Index t = 0; t < dim_ * lanes; t += lanes) {
    simd::store(y + t, averaged(momentum + t, Settings::momentum_memory, y_correction,
                                scratch.gradient.data() + t));
  }
  const Pack squares = solve_factored(dim_, h, y);
  const Pack rms = simd::psqrt(simd::pmul(squares, simd::fill(1.0f / static_cast<float>(dim_))));
  const Pack scale = simd::pdiv(simd::fill(length), simd::padd(rms, simd::fill(1e-20f)));
  for (Index t = 0; t < dim_ * lanes; t += lanes) {
    simd::store(y + t, simd::pmul(scale, simd::load(y + t)));
  }
}

}  // namespace headfit::learned
