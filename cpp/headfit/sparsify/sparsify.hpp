// A sparse pattern out of an attention matrix: the heaviest entries, with bounds on how
// many a row and a column may keep. A greedy b-matching by weight, within 1/2 of the best.
#pragma once

#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

enum class OnEmpty { raise, keep_max };

struct SparsifyOptions {
  Index per_row = 0;     // 0: only the mass bounds a row
  double mass = 0;       // stop a row when it keeps this share of itself; 0: only per_row does
  Index per_column = 0;  // 0: columns are free
  std::span<const Column> exempt{};  // columns that are free all the same
  bool exempt_sinks = false;         // and those that most rows attend to
  OnEmpty on_empty = OnEmpty::raise;
};

// Compressed rows, columns sorted, weights scaled to sum to 1 in each row.
struct SparseRows {
  std::vector<Offset> offsets;
  std::vector<Column> columns;
  std::vector<double> weights;
  std::vector<double> dropped;  // the share of each row that was left out
  std::vector<Column> exempt;   // sorted
};

// The entries in the order (weight falling, row, column) are kept one after the other while
// their row is not satisfied and their column has room. Weights are shares of their row.
// From logits, one head: O(n m d) time for each scan of the rows that need one, memory
// O(n (per_row + d)), never n m. Throws InputError for a row that loses everything.
template <class T>
SparseRows sparsify_logits(const LogitSource<T>& source, const SparsifyOptions& options,
                           const Run& run);

// The same of a nonnegative matrix, dense or compressed; entries that the mask leaves out
// do not count. Throws InputError for a negative or non-finite entry.
template <class T>
SparseRows sparsify_matrix(const Heads<T>& matrix, const Mask& mask,
                           const SparsifyOptions& options, const Run& run);

struct CompressedRows {
  Index rows = 0;
  Index cols = 0;
  const Offset* offsets = nullptr;
  const Column* columns = nullptr;
  const double* weights = nullptr;
};
SparseRows sparsify_compressed(const CompressedRows& matrix, const Mask& mask,
                               const SparsifyOptions& options, const Run& run);

}  // namespace headfit
