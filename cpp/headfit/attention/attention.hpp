// The basic questions about an attention matrix softmax(logits). Each is answered by a fold over
// the stream of logits. A row in which the mask allows nothing is a row of zeros. With sinks, what
// the sink takes is missing from the weights of the keys.
#pragma once

#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

// A stack of output arrays, one row-major matrix for each query head.
template <class T>
struct OutHeads {
  T* data = nullptr;
  Index head_stride = 0;
  Index row_stride = 0;
  bool is_fresh = false;  // memory never written to before, see simd/write_row.hpp
  T* row(Index head, Index row) const { return data + head * head_stride + row * row_stride; }
};

// A matrix as the output of one head.
template <class T>
OutHeads<T> output_of(Matrix<T>& x) {
  return {x.data(), x.size(), x.cols()};
}

// Writes the logits themselves; masked positions are -inf.
template <class T>
void attention_logits(const LogitSource<T>& source, const OutHeads<T>& out, const Run& run);

// Writes the dense attention matrix for the rows that the source asks for.
template <class T>
void attention_matrix(const LogitSource<T>& source, const OutHeads<T>& out, const Run& run);

// The offsets of the entries of a sparse mask, for the rows that a source asks for; the last one is
// their number. Throws an InputError without a sparse mask.
template <class T>
std::vector<Offset> entry_starts(const LogitSource<T>& source);

enum class EntryValues { logits, weights };

// Writes the logits or weights of these entries alone, head by head, in O(entries) time and memory.
// Entries that something else masks are -inf or 0.
template <class T>
void attention_entries(const LogitSource<T>& source, EntryValues what, T* out, const Run& run);

// Writes the k largest weights of every row, as fractions of the whole row. The largest comes
// first, and of equal ones the lower column. Where a row has fewer keys, the remaining places get
// column -1 and weight 0.
template <class T>
void attention_topk(const LogitSource<T>& source, Index k, const OutHeads<Offset>& columns,
                    const OutHeads<T>& weights, const Run& run);

// Writes the same columns with their logits, without computing the sums that weights need.
// Remaining places get column -1 and logit -inf.
template <class T>
void attention_topk_logits(const LogitSource<T>& source, Index k, const OutHeads<Offset>& columns,
                           const OutHeads<T>& logits, const Run& run);

// Writes attention times values, without storing the matrix. V has the heads of K.
template <class T>
void attention_apply(const LogitSource<T>& source, const Heads<T>& v, const OutHeads<T>& out,
                     const Run& run);

// For each row: its entropy in nats, its largest weight, the logarithm of the sum of its
// exponentials, and for each share how many keys are needed at least to hold it. The largest weight
// is a fraction of the whole row and the sum has the term of the sink; entropy and counts are about
// the keys alone, that is, about their weights divided by `key_mass`, the sum of these weights.
// Arrays have shape (heads, rows), counts (heads, rows, shares); those of numbers may be missing.
struct StatsOut {
  double* entropy = nullptr;
  double* max_weight = nullptr;
  double* log_sum = nullptr;
  Offset* counts = nullptr;
  std::span<const double> shares;
  double* key_mass = nullptr;
};
template <class T>
void attention_stats(const LogitSource<T>& source, const StatsOut& out, const Run& run);

}  // namespace headfit
