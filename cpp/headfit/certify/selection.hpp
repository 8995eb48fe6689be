// A certificate about sparse attention: which keys an index surely selects, and how much of the
// attention of the original heads these surely keep. It holds in exact arithmetic for the stored
// numbers, for every kernel that computes the scores in float32, or in sums of fewer bits, whatever its
// order of summation and its rule for ties.
//
// An index has one key of a few numbers for each key of the heads, and for each row one query (the
// form "dot") or one for each of some heads ("sum"). The score of a key is their product, or the
// logarithm of the sum over heads of the softmax of their products. Of what a row sees, the first keys
// and the last ones before its own position are kept always. Of the others, the free keys, those with
// the largest scores are selected, as many as are left.
#pragma once

#include <algorithm>
#include <vector>

#include "headfit/attention/index_form.hpp"
#include "headfit/certify/certificate.hpp"

namespace headfit {

struct SelectionOptions {
  Index keys = 64;  // of each row, those that are kept always included
  Index first = 4;  // the first keys that a row sees
  Index window = 32;  // a row's own position and those before it
  double mass = 0.9;  // the share of the attention that every row must keep
  IndexForm form = IndexForm::dot;
  // How scores are computed: in float32, and rounded as logits are, which is for the form "dot".
  Kernel kernel = {.float32 = true};

  // How many free keys a row selects, if it has as many.
  Index budget() const { return keys - first - window; }
};

// What is found for each row (of the index), and for each row of each query head, head by head. A
// row that sees nothing has nothing to lose: its masses are 1.
struct SelectionRows {
  SelectionRows(Index heads, Index rows);

  // Bounds of the mass that the selected keys have in the softmax of the head, a sink included in
  // its sum, whichever of the possible keys are selected beside the sure ones.
  Vector<double> least, most;
  std::vector<Verdict> verdict;
  std::vector<Offset> sure;  // of each row, the keys that are surely selected
  std::vector<Offset> selected;  // of each row, the keys that any selection has
  Index rescanned = 0;  // rows whose logits were computed in double too
};

// Judges the index with the rounded queries and keys `q_index` and `k_index`, one of each for every row
// and every key of `source`; in the form "sum" queries of as many heads as it has. The heads of the
// source have one mask; they may have a soft-cap and sinks, but no bias and no rotary positions.
// `columns`, where it is not null, receives the surely selected keys of each row, rising,
// `options.keys` places a row, with -1 behind them.
//
// Scores are computed in double. The heads' logits are computed in T, and again in double for rows
// that this may decide. Takes O(n (m (d + D heads))) time and, besides what is given and found, the
// packed keys and O(m) memory for each of a few rows of each thread.
template <class T>
SelectionRows certify_selection(const LogitSource<T>& source, const Heads<float>& q_index,
                                const Heads<float>& k_index, const SelectionOptions& options,
                                Column* columns, const Run& run);

}  // namespace headfit
