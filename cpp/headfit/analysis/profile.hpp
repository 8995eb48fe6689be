// Where the attention of a head goes: to which columns, to which offsets, and how much of it to the
// few entries of a row that a sparse pattern would keep.
#pragma once

#include "headfit/attention/attention.hpp"

namespace headfit {

struct ProfileOptions {
  // The support of a row: its largest entries (of equal ones, those with lower columns) until they
  // hold `share`, but at most `per_row`.
  Index per_row = 8;
  double share = 0.9;
  // For each query head, the token at each position, for the induction scores. Needs n = m.
  const Offset* tokens = nullptr;
  Index token_head_stride = 0;
};

// Arrays are row-major, with one row for each query head. Rows in which the mask allows nothing
// count as zero. With sinks, supports and `top_mass` are about the weights of the keys divided by
// their sum; the masses by column and offset and the induction scores are sums of weights as they
// are.
struct ProfileOut {
  double* top_mass = nullptr;  // (heads, n): the mass of the per_row largest entries
  double* log_gamma = nullptr;  // (heads, n): log of the largest ratio in the support
  Offset* kept = nullptr;  // (heads, n): number of entries of the support
  // (heads, n): the mass on keys that follow an earlier occurrence of the row's token, and NaN
  // where there is none. Null if no tokens are given.
  double* induction = nullptr;
  Offset* load = nullptr;  // (heads, m): number of rows whose support has the column
  double* column_mass = nullptr;  // (heads, m): the mass on a column, summed over rows
  // (heads, n + m - 1): the mass, summed over rows, by the offset p - j of a column j from the
  // position p = i + m - n of the row; offsets range from 1 - n to m - 1.
  double* offset_mass = nullptr;
  StatsOut stats = {};  // of the same rows, from the same pass
};

// Takes O(n m d) time and, besides the outputs, O(n + m d) memory per head and a few rows per thread.
template <class T>
void head_profile(const LogitSource<T>& source, const ProfileOptions& options,
                  const ProfileOut& out, const Run& run);

}  // namespace headfit
