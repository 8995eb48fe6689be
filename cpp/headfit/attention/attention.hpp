// The plain questions about an attention matrix softmax(logits), each a fold over
// the tile stream. A row that the mask leaves empty is a row of zeros.
#pragma once

#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

// A stack of outputs, one row-major matrix for each query head.
template <class T>
struct OutHeads {
  T* data = nullptr;
  Index head_stride = 0;
  Index row_stride = 0;
  bool is_fresh = false;  // never written to: the system clears its pages, into the caches
  T* row(Index head, Index row) const { return data + head * head_stride + row * row_stride; }
};

// The logits themselves; masked positions are -inf.
template <class T>
void attention_logits(const LogitSource<T>& source, const OutHeads<T>& out, const Run& run);

// The dense attention matrix, rows as asked for.
template <class T>
void attention_matrix(const LogitSource<T>& source, const OutHeads<T>& out, const Run& run);

// The k largest weights of every row, largest first (ties: lower column first), as
// fractions of the whole row. Places beyond the keys a row has: column -1, weight 0.
template <class T>
void attention_topk(const LogitSource<T>& source, Index k, const OutHeads<Offset>& columns,
                    const OutHeads<T>& weights, const Run& run);

// The same columns with their logits, without the sums that weights need. Places beyond the keys
// a row has: column -1, logit -inf.
template <class T>
void attention_topk_logits(const LogitSource<T>& source, Index k, const OutHeads<Offset>& columns,
                           const OutHeads<T>& logits, const Run& run);

// Attention times values without the matrix; v has the heads of K.
template <class T>
void attention_apply(const LogitSource<T>& source, const Heads<T>& v, const OutHeads<T>& out,
                     const Run& run);

// Per row: entropy in nats, largest weight, log of the sum of exponentials, and for
// each share the fewest keys that hold it. Arrays are (heads, rows), counts are
// (heads, rows, shares).
struct StatsOut {
  double* entropy = nullptr;
  double* max_weight = nullptr;
  double* log_sum = nullptr;
  Offset* counts = nullptr;
  std::span<const double> shares;
};
template <class T>
void attention_stats(const LogitSource<T>& source, const StatsOut& out, const Run& run);

}  // namespace headfit
