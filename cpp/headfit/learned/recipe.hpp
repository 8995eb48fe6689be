// The numbers of the recipe, all measured: what was tried and did not help is told in the
// documentation of the method.
#pragma once

#include <algorithm>

#include "headfit/base/types.hpp"

namespace headfit::learned {

struct Recipe {
  Index anneal_steps = 500;
  int list_cap = 24;         // off-support entries listed a row; even
  float first_step = 0.5f;   // root-mean-square change of a coordinate in one step, at first
  float last_step = 1e-4f;   // and at the end of an anneal: the step is its temperature
  float reheat_step = 0.03f;
  float damping = 0.3f;      // of the row curvature, relative to its mean eigenvalue
  float momentum = 0.95f;
  Index scan_every = 2;      // steps that share a list, once `scan_always` steps are over
  Index scan_always = 100;

  // A wide row wants more damping and shorter, less persistent steps.
  static Recipe for_row_size(double k, Index anneal_steps) {
    const auto size = static_cast<float>(std::max(k, 1.0));
    Recipe r;
    if (anneal_steps > 0) r.anneal_steps = anneal_steps;
    r.list_cap = std::max(24, 2 * static_cast<int>(2 * size));
    r.first_step = std::clamp(2 / size, 0.25f, 0.5f);
    r.damping = std::clamp(size * size / 20, 0.3f, 30.0f);
    r.momentum = size < 6 ? 0.95f : 0.9f;
    return r;
  }
};

inline constexpr float list_slack = 0.15f;       // logits this far below a row's limit are listed
inline constexpr float hard_deficit = 0.5f;      // a row that misses by more is hard
inline constexpr float hard_share = 0.1f;        // fewer hard rows than this can be freed
inline constexpr float weight_growth = 1.1f;     // of a hard row's pull on the keys, a scan
inline constexpr float weight_cap = 300.0f;
// The part of the distortion to spare before rows go to a coarse format, at first; more after
// every rounding that left rows, less after every anneal that never got there.
inline constexpr float first_reserve = 0.3f;
inline constexpr float reserve_growth = 1.4f;
inline constexpr float reserve_decay = 0.6f;
inline constexpr float reserve_cap = 0.7f;
inline constexpr float curvature_memory = 0.9f;  // moving average of the row curvatures
inline constexpr float curvature_floor = 1e-3f;  // the absolute part of the damping

}  // namespace headfit::learned
