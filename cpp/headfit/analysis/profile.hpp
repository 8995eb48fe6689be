// Where the attention of a head goes: which columns, which offsets, how much of it into the
// few entries of a row that a sparse pattern would keep.
#pragma once

#include "headfit/base/threads.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

struct ProfileOptions {
  // A row's support: its largest entries until they hold `share`, at most `per_row`
  // (ties: the lower column).
  Index per_row = 8;
  double share = 0.9;
  // For each query head the last earlier place with the token of place i, or -1; n = m.
  const Offset* previous = nullptr;
  Index previous_head_stride = 0;
};

// Arrays are row-major, one row a query head; rows that the mask leaves empty count nothing.
struct ProfileOut {
  double* top_mass = nullptr;   // (heads, n): held by the per_row largest entries
  double* log_gamma = nullptr;  // (heads, n): log of the largest ratio in the support
  Offset* kept = nullptr;       // (heads, n): entries of the support
  double* induction = nullptr;  // (heads, n): on keys that follow an earlier occurrence of the
                                // row's token; NaN where there is none. Null without tokens
  Offset* load = nullptr;       // (heads, m): rows whose support has the column
  double* column_mass = nullptr;  // (heads, m): summed over rows
  // (heads, n + m - 1): summed over rows, by the difference p - j of the row's position
  // p = i + m - n and the column, from the least, 1 - n, to the largest, m - 1.
  double* offset_mass = nullptr;
};

// Time O(n m d), memory beside the outputs O(n + m) a head and some rows a thread.
template <class T>
void head_profile(const LogitSource<T>& source, const ProfileOptions& options,
                  const ProfileOut& out, const Run& run);

}  // namespace headfit
