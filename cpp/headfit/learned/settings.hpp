// The settings of the learned method, with what each was tuned on.
//
// All were found by hand, the smallest certified head first and the time second, on random k-regular
// patterns at gamma 2, leak 0.05 and log distortion 0.1. "N x k in d" names N tokens, k nonzeros per
// row and a head of size d; docs/learned-method.md and its history have figures. "Not recorded"
// stands where neither they nor the history of this file say what a number was chosen by.
//
// A "hit" is a column off the support whose logit a scan finds near or above the limit of its row.
// The number of hits, divided by the number of slots in the candidate lists, tells how much room
// the head has left. A "hard" row is one that misses its tolerances by much. The length of a step is
// the root-mean-square change of a coordinate.
#pragma once

#include <algorithm>
#include <cmath>

#include "headfit/base/types.hpp"

namespace headfit::learned {

struct Settings {
  // What depends on the pattern: `for_rows` and `for_many_rows` set it.

  // Slots for columns off the support, per row; an even number. 24 and four per nonzero, whichever
  // is more. 512 and 1,024 x 4: twice as many find no smaller size, and 12 or 16 take a third more
  // steps where there is less room.
  int list_cap = 24;
  // The length of a held step after a thousand steps, from which it falls by the root of the steps;
  // shorter for rows of more than four nonzeros. Lengths that fall exponentially take 2.5 times the
  // steps at 2,048 x 8 in d = 14, and three times at 10,000 x 4 in d = 9; falls by the third or the
  // 0.7th power of the steps are no better (512 and 1,024 x 4). The number itself: not recorded.
  float held_length_at_1000 = 0.14f;
  // Of the row curvature, relative to its mean eigenvalue; k^2 / 50 for rows of k nonzeros. Not
  // recorded; k^2 / 20 went with steps whose length fell exponentially.
  float damping = 0.3f;
  // The last length of a quench. Log-ratios end as far from the target's as the last step is long,
  // so it is a thousandth of log(1 + distortion), within bounds: chosen by that, not by a sweep.
  float last_length = 1e-4f;
  // The most steps of the brief hold, at whose end it is decided whether the head has ample room.
  // 100,000 x 4 in d = 16; `long_brief_hold` where lists are kept.
  Index brief_hold = 100;
  // With fewer hits per slot the brief hold has lasted long enough for a quench; the limit is higher
  // for many rows with many nonzeros. Not recorded.
  double few_hits = 0.5;
  // The steps of a quench where the head has ample room. 60 or 80 leave rows in every other fit,
  // 200 take up to half as many steps again (256 to 2,048 tokens, k = 12 to 64).
  Index ample_quench = 100;
  // Whether hot scans keep what the candidate lists hold (see ColumnSampling::keep).
  bool keeps_lists = false;
  // Whether averaged curvatures are stored as bfloat16, in half of the memory. A million x 4 in
  // d = 21.
  bool short_curvature = false;

  // The brief hold: where a head has ample room, its steps suffice. The hits are counted after
  // `first_check` steps and then every `check_every` steps, which halves the steps of such a fit.
  // 100,000 x 4 in d = 16, where a length of 0.06 does too.
  static constexpr float brief_length = 0.1f;
  static constexpr Index first_check = 30;
  static constexpr Index check_every = 10;
  // Below `early_hits` per slot the quench begins at once, and below `ample_hits` at the end of the
  // brief hold a short quench will do. Not recorded.
  static constexpr double early_hits = 0.25;
  static constexpr double ample_hits = 0.5;

  // The hold. `hottest` bounds the length at its start: with twice that keys fly apart from d = 12
  // on, with half of it the smallest sizes take twice the steps. With more than `hits_to_quench`
  // per slot it continues: not recorded.
  static constexpr float hottest = 0.25f;
  static constexpr double hits_to_quench = 4;
  // A quench that comes too early is followed by the next one after 7/5 times the steps. The longest
  // hold lasts for `hold_span` first holds; then a new start follows, whose first hold is 5/2 times
  // as long. Not recorded.
  static constexpr Index hold_span = 10;
  static Index next_quench(Index steps) { return steps + (2 * steps + 4) / 5; }
  static Index next_first_hold(Index steps) { return steps * 5 / 2; }
  // From the length of a hold to the last length. 2,048 x 8 in d = 14: at a held length the mean
  // deficit settles, and 200 shrinking steps then end the fit.
  static constexpr Index quench_steps = 200;
  // An anneal ends early where mostly hard rows are left and steps are shorter than this. Not
  // recorded.
  static constexpr float too_short_to_free = 2e-3f;

  // Reheats. With three times the length no better (512 and 1,024 x 4). The steps: not recorded.
  static constexpr Index reheat_steps = 300;
  static constexpr float reheat_length = 0.03f;
  // A row that misses by more is hard; reheats follow if a smaller share of the rows is hard. Weights
  // that grow from the start on leave all rows, and from where a quarter of the rows are no longer
  // hard they free the others (512 and 1,024 x 4). The deficit: not recorded.
  static constexpr float hard_deficit = 0.5f;
  static constexpr float hard_share = 0.75f;
  // The factor on the weight of a hard row per scan, and the largest weight. Not recorded; that
  // weights go on growing from reheat to reheat was measured at 160 to 224 x 4 in d = 5.
  static constexpr float weight_growth = 1.1f;
  static constexpr float weight_cap = 300.0f;

  // Moving averages of gradients and curvatures. Momentum 0.95 and 0.98 with shorter steps, 0.5 and
  // 0 with longer ones: no better (512 and 1,024 x 4). The memory of the curvature: not recorded.
  static constexpr float momentum_memory = 0.9f;
  static constexpr float curvature_memory = 0.9f;
  static constexpr float curvature_floor = 1e-3f;  // the absolute part of the damping; not recorded

  // How many steps share one scan. In a hold, every step has a scan of its own for the first
  // `scan_always` steps, and later every `scan_every` steps have one; every third step takes a third
  // more steps where there is less room. In an anneal a list lives until steps have moved by
  // `list_lifetime` in all, but for at most `scan_within` steps: not recorded.
  static constexpr Index scan_always = 100;
  static constexpr Index scan_every = 2;
  static constexpr Index scan_within = 10;
  static constexpr float list_lifetime = 0.02f;
  // Logits less than this below a row's limit are listed. 0.1 to 0.15 in the prototype; 0.3 and 1
  // gain nothing (512 x 4 in d = 6).
  static constexpr float list_slack = 0.15f;
  // At high temperature there are more hits than slots. Rows then look at every s-th column only,
  // which still fills their lists: s is at most `largest_column_step`, and at least
  // `fewest_rows_per_class` rows look at the same columns. 10,000 x 4 in d = 9 takes 0.6 times as
  // long; the two bounds: not recorded.
  static constexpr Index largest_column_step = 32;
  static constexpr Index fewest_rows_per_class = 512;

  // Where there are many rows and lists are kept (see `for_many_rows`): a scan looks at one of at
  // least `kept_column_step` classes of columns, since with 16 or 32 the quench leaves most rows
  // (60,000 x 4 in d = 18), and in an anneal a list lives for at most `kept_within` steps. The brief
  // hold may take longer, which is regained if it avoids scans of all columns: a million x 4 in
  // d = 21, where a hundred steps leave too many hits and sixty more make them few.
  static constexpr Index kept_column_step = 8;
  static constexpr Index kept_within = 3;
  static constexpr Index long_brief_hold = 200;
  // The scan of all columns that follows finds rows whose lists missed a column. If they are at most
  // `mend_share` of all, short steps mend them, in at most `most_mends` rounds of `mend_steps`
  // steps. The last of these are so short that of a million rows that meet the tolerances none
  // leaves them, where 1e-4 loses two hundred. A million x 4 in d = 21.
  static constexpr double mend_share = 0.2;
  static constexpr Index most_mends = 6;
  static constexpr Index mend_steps = 30;
  static constexpr float mend_length = 1e-3f;
  static constexpr float mend_last_length = 1e-5f;

  // Rounding to a narrow format. The part of log(1 + distortion) that is kept in reserve before a
  // head is rounded grows after every rounding that left rows outside the tolerances, and decays
  // after every start that did not reach the tolerances with the reserve. Not recorded.
  static constexpr float first_reserve = 0.3f;
  static constexpr float reserve_growth = 1.4f;
  static constexpr float reserve_decay = 0.6f;
  static constexpr float reserve_cap = 0.7f;
  // Of the most reheats one in so many is made in any case; after these one that frees no row is the
  // last. Rows left are mostly hard where they are at most so many times the hard ones. Not recorded.
  static constexpr Index sure_part_of_reheats = 2;
  static constexpr Index left_by_hard = 2;
  // What a scan counts for in the estimate of a row's hits, by the share of the list that it filled,
  // and the bounds of that. Not recorded.
  static constexpr double filling_weight = 2.0, least_weight = 0.25;

  // Queries settle to the rounded keys in so many steps, with a scan every few of them, and are then
  // rounded and improved in so many rounds at most. Not recorded.
  static constexpr Index settling_steps = 200;
  static constexpr float settling_length = 0.02f;
  static constexpr Index settling_scan_every = 10;
  static constexpr Index most_rounding_rounds = 6;
  // The damping of the curvature by which errors are compensated, relative to its mean eigenvalue,
  // and the most sweeps over a query in search of better grid points. Not recorded.
  static constexpr double rounding_damping = 1e-2;
  static constexpr int most_rounding_sweeps = 20;

  // The deviation of the random numbers in columns that a given start lacks. Not recorded.
  static constexpr float missing_column_deviation = 0.1f;
  // In seconds: what the last scan, and exact queries after it, may take after the time limit.
  static constexpr double overtime = 0.5;

  // The settings for rows with k of n nonzeros on average. Rows with many nonzeros need more damping
  // and shorter steps.
  static Settings for_rows(Index n, double k, double distortion) {
    const auto size = static_cast<float>(std::max(k, 1.0));
    Settings s;
    s.list_cap = std::max(24, 2 * static_cast<int>(2 * size));
    s.held_length_at_1000 *= std::min(1.0f, 4 / size);
    s.damping = std::clamp(size * size / 50, 0.3f, 30.0f);
    s.last_length = std::clamp(static_cast<float>(std::log1p(distortion)) / 1000, 1e-6f, 1e-4f);
    s.few_hits = std::max(s.few_hits, 0.0015 * k * static_cast<double>(n) / s.list_cap);
    return s;
  }

  // The settings for the same rows where they are so many that memory counts and scans take most of
  // the time. Lists are kept where scans may look at a part of the columns. They follow a quench of
  // rows with many nonzeros late, so that a hundred steps leave most of these rows (100,000 x 16 in
  // d = 64; 16,384 x 16 in d = 48 takes 396 steps with two hundred, and 577 with one).
  void for_many_rows(double k, bool may_skip_columns) {
    short_curvature = true;
    keeps_lists = may_skip_columns;
    if (!keeps_lists) return;
    brief_hold = long_brief_hold;
    const auto steps = static_cast<Index>(100 * k / 8);
    ample_quench = std::clamp(steps, ample_quench, quench_steps);
  }

  // The length of a step during a hold, `steps` steps after the start. Keys find their arrangement
  // at some length that depends on the pattern and the head size; this one falls so slowly that it
  // stays near every length for long.
  float held_length(Index steps) const {
    if (steps < brief_hold) return brief_length;
    return std::min(hottest, held_length_at_1000 * std::sqrt(1000 / static_cast<float>(steps + 1)));
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

}  // namespace headfit::learned
