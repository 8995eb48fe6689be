// The numbers of the recipe, all measured: what was tried and did not help is told in the
// documentation of the method.
#pragma once

#include <algorithm>
#include <cmath>

#include "headfit/base/types.hpp"

namespace headfit::learned {

// Steps that do where a head has room to spare: how much room hits tell after the first few.
inline constexpr Index brief_hold = 100;
inline constexpr Index first_look = 30;
inline constexpr Index look_every = 10;
inline constexpr float brief_length = 0.1f;
// Hits for each place of a list: with fewer at its end there is ample room, and with so few that
// it need not be awaited.
inline constexpr double ample_hits = 0.5;
inline constexpr double early_hits = 0.25;

struct Recipe {
  int list_cap = 24;       // off-support entries listed a row; even
  float hottest = 0.25f;   // root-mean-square change of a coordinate in one step: at first,
                           // where twice as much throws keys far away if dim exceeds 10,
  float warmth = 0.14f;    // and after a thousand steps
  float damping = 0.3f;    // of the row curvature, relative to its mean eigenvalue
  float last_length = 1e-4f;
  double few_hits = 0.5;   // for each place of a list: with fewer a brief hold has done

  // A wide row wants more damping and shorter steps. k nonzeros a row, of n. Log-ratios settle
  // as far from those asked for as the last step is long.
  static Recipe for_rows(Index n, double k, double distortion) {
    const auto size = static_cast<float>(std::max(k, 1.0));
    Recipe r;
    r.list_cap = std::max(24, 2 * static_cast<int>(2 * size));
    r.warmth *= std::min(1.0f, 4 / size);
    r.damping = std::clamp(size * size / 50, 0.3f, 30.0f);
    r.last_length = std::clamp(static_cast<float>(std::log1p(distortion)) / 1000, 1e-6f, 1e-4f);
    r.few_hits = std::max(r.few_hits, 0.0015 * k * static_cast<double>(n) / r.list_cap);
    return r;
  }

  // The length of a step, after `steps` steps from the start. Keys find their places at a
  // length that depends on the pattern and the dim: this passes each one slowly.
  float held_length(Index steps) const {
    if (steps < brief_hold) return brief_length;
    return std::min(hottest, warmth * std::sqrt(1000 / static_cast<float>(steps + 1)));
  }

  // The length of step t of so many that fall exponentially from `first` to the last length.
  float falling_length(float first, Index t, Index steps) const {
    const float done = static_cast<float>(t) / static_cast<float>(steps);
    return first * std::pow(last_length / first, done);
  }
};

inline constexpr double hits_to_quench = 4;   // the same after a hold: with more it is too early
inline constexpr Index hold_span = 10;        // the longest hold from one start, in first holds
inline constexpr Index quench_steps = 200;    // from a held length to the last
inline constexpr Index ample_quench = 100;    // the same where room is ample
inline constexpr Index warm_steps = 500;      // from the reheat length, with a given start
inline constexpr Index reheat_steps = 300;
inline constexpr float reheat_length = 0.03f;
inline constexpr float momentum_memory = 0.9f;
inline constexpr Index scan_always = 100;     // steps, and then
inline constexpr Index scan_every = 2;        // steps share a list; more at the end of a quench:
inline constexpr Index scan_within = 10;
inline constexpr float list_lifetime = 0.02f;  // in lengths of steps

// While steps are hot, rows look at every s-th column, so that they still fill their lists.
inline constexpr Index largest_column_step = 32;
inline constexpr Index least_part = 512;      // rows that look at the same columns
inline constexpr float list_slack = 0.15f;       // logits this far below a row's limit are listed
inline constexpr float hard_deficit = 0.5f;      // a row that misses by more is hard
inline constexpr float hard_share = 0.75f;       // fewer hard rows than this can be freed
inline constexpr float weight_growth = 1.1f;     // of a hard row's pull on the keys, a scan
inline constexpr float weight_cap = 300.0f;
// The part of the distortion to spare before rows go to a coarse format, at first; more after
// every rounding that left rows, less after every start that never got there.
inline constexpr float first_reserve = 0.3f;
inline constexpr float reserve_growth = 1.4f;
inline constexpr float reserve_decay = 0.6f;
inline constexpr float reserve_cap = 0.7f;
inline constexpr float curvature_memory = 0.9f;  // moving average of the row curvatures
inline constexpr float curvature_floor = 1e-3f;  // the absolute part of the damping

}  // namespace headfit::learned
