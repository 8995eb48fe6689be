// The constants of the learned method. All of them were found by measurement;
// docs/learned-method.md tells what was tried and did not help.
//
// A "hit" is a column off the support whose logit a scan finds near or above the limit of its row.
// The number of hits, divided by the number of slots in the candidate lists, tells how much room
// the head has left. A "hard" row is one that misses its tolerances by much.
#pragma once

#include <algorithm>
#include <cmath>

#include "headfit/base/types.hpp"

namespace headfit::learned {

// The brief hold: where a head has ample room, its steps of length `brief_length` suffice (see
// Recipe::brief_hold). The hits per slot are checked after `first_check` steps, and then every
// `check_every` steps.
// Where there are many rows it may take twice as long: that is soon regained if it avoids scans of
// all columns.
inline constexpr Index long_brief_hold = 200;
inline constexpr Index first_check = 30;
inline constexpr Index check_every = 10;
inline constexpr float brief_length = 0.1f;
// Below this many hits per slot at the end of the brief hold the head has ample room: a short
// quench will do.
inline constexpr double ample_hits = 0.5;
// Below this many hits per slot the quench begins at once, without waiting for the end of the brief
// hold.
inline constexpr double early_hits = 0.25;

inline constexpr Index quench_steps = 200;  // from the length of a hold to the last length

struct Recipe {
  int list_cap = 24;  // slots for columns off the support, per row; an even number
  // The length of a step is the root-mean-square change of a coordinate. `hottest` bounds it at the
  // start of a hold: with twice that length keys fly far away if the head size exceeds 10. `warmth`
  // is the length after a thousand steps.
  float hottest = 0.25f;
  float warmth = 0.14f;
  float damping = 0.3f;  // of the row curvature, relative to its mean eigenvalue
  float last_length = 1e-4f;
  Index brief_hold = 100;  // steps, at most
  double few_hits = 0.5;  // per slot; with fewer the brief hold was long enough to quench
  Index ample_quench = 100;  // the steps of a quench where the head has ample room
  bool short_curvature = false;  // store averaged curvatures as bfloat16, in half of the memory

  // The recipe for rows with k of n nonzeros on average. Rows with many nonzeros need more damping
  // and shorter steps. At the end of an anneal, log-ratios differ from the target's by about the
  // length of the last step, so it must be short where the distortion is small.
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

  // The recipe for the same rows where lists are kept from scan to scan: they follow a quench of
  // rows with many nonzeros late, so that a hundred steps leave most of these rows.
  void keep_lists(double k) {
    brief_hold = long_brief_hold;
    const auto steps = static_cast<Index>(100 * k / 8);
    ample_quench = std::clamp(steps, ample_quench, quench_steps);
  }

  // The length of a step during a hold, `steps` steps after the start. Keys find their arrangement
  // at some length that depends on the pattern and the head size; this one falls so slowly that it
  // stays near every length for long.
  float held_length(Index steps) const {
    if (steps < brief_hold) return brief_length;
    return std::min(hottest, warmth * std::sqrt(1000 / static_cast<float>(steps + 1)));
  }

  // The length of step t of an anneal of `steps` steps, falling exponentially from `first` to
  // `last`, or to the last length of all anneals.
  float falling_length(float first, Index t, Index steps, float last) const {
    const float done = static_cast<float>(t) / static_cast<float>(steps);
    return first * std::pow(last / first, done);
  }
  float falling_length(float first, Index t, Index steps) const {
    return falling_length(first, t, steps, last_length);
  }
};

inline constexpr double hits_to_quench = 4;  // per slot; with more hits a full hold continues
inline constexpr Index hold_span = 10;  // the longest hold from one start, in first holds
inline constexpr Index reheat_steps = 300;
inline constexpr float reheat_length = 0.03f;
inline constexpr float momentum_memory = 0.9f;

// How many steps share one scan. In a hold, every step has a scan of its own for the first
// `scan_always` steps, and later every `scan_every` steps have one. In an anneal a list lives until
// steps have moved by `list_lifetime` in all, but for at most `scan_within` steps.
inline constexpr Index scan_always = 100;
inline constexpr Index scan_every = 2;
inline constexpr Index scan_within = 10;
inline constexpr float list_lifetime = 0.02f;

// At high temperature there are more hits than slots. Rows then look at every s-th column only,
// which still fills their lists: s is at most `largest_column_step`, and at least
// `fewest_rows_per_class` rows look at the same columns.
inline constexpr Index largest_column_step = 32;
inline constexpr Index fewest_rows_per_class = 512;
// Where a scan takes most of the time, and a head has ample room, lists are kept from scan to scan
// (see NearScan::keep): every scan looks at one of at least so many classes of columns, and in an
// anneal a list lives for at most `kept_within` steps.
inline constexpr Index kept_column_step = 8;
inline constexpr Index kept_within = 3;
// The scan of all columns that follows finds rows whose lists missed a column. If they are at most
// this share of all, short steps mend them, in at most `most_mends` rounds of `mend_steps` steps.
inline constexpr double mend_share = 0.2;
inline constexpr Index most_mends = 6;
inline constexpr Index mend_steps = 30;
// The last of them are so short that of a million rows that meet the tolerances none leaves them.
inline constexpr float mend_length = 1e-3f;
inline constexpr float mend_last_length = 1e-5f;
inline constexpr float list_slack = 0.15f;  // logits less than this below a row's limit are listed
inline constexpr float hard_deficit = 0.5f;  // a row that misses by more is hard
// If a smaller share of the rows is hard, reheats free them.
inline constexpr float hard_share = 0.75f;
inline constexpr float weight_growth = 1.1f;  // factor on the weight of a hard row per scan
inline constexpr float weight_cap = 300.0f;
// The part of log(1 + distortion) that is kept in reserve before a head is rounded to a coarse
// format. It grows after every rounding that left rows outside the tolerances, and decays after
// every start that did not reach the tolerances with the reserve.
inline constexpr float first_reserve = 0.3f;
inline constexpr float reserve_growth = 1.4f;
inline constexpr float reserve_decay = 0.6f;
inline constexpr float reserve_cap = 0.7f;
inline constexpr float curvature_memory = 0.9f;  // of the moving average of row curvatures
inline constexpr float curvature_floor = 1e-3f;  // the absolute part of the damping

}  // namespace headfit::learned
