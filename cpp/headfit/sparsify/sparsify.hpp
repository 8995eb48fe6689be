// Makes a sparse pattern from an attention matrix: it keeps the heaviest entries, with bounds on
// how many a row and a column may keep. It is a greedy b-matching by weight, whose total weight is
// at least half of the largest possible where rows are bounded by number alone.
#pragma once

#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/pattern/target.hpp"

namespace headfit {

enum class OnEmpty { raise, keep_max, leave };

struct SparsifyOptions {
  Index per_row = 0;     // entries that a row may keep; 0 for no bound but the mass
  double mass = 0;       // a row stops when it keeps this share of its weight; 0: it does not
  Index per_column = 0;  // entries that a column may keep; 0 for no bound
  std::span<const Column> exempt{};  // columns that are not bounded
  bool exempt_sinks = false;         // whether columns that most rows attend to are not bounded
  OnEmpty on_empty = OnEmpty::raise;
};

// Compressed rows, columns sorted; the weights of `sparsify_*` sum to 1 in each row.
struct SparseRows {
  std::vector<Offset> offsets;
  std::vector<Column> columns;
  std::vector<double> weights;
  std::vector<double> dropped;  // the share of each row that was left out
  std::vector<Column> exempt;   // sorted
};

// Goes through the entries by falling weight (of equal weights: by row, then by column), and keeps
// each one if its row is not satisfied yet and its column has room. Weights are shares of their
// row; what a sink takes is no part of the row, so sinks change nothing. This version reads logits
// of one head: each scan of the rows that need one takes O(n m d) time, and memory is O(n d) besides
// what rows keep. With OnEmpty::raise, throws InputError if a row would keep nothing.
template <class T>
SparseRows sparsify_logits(const LogitSource<T>& source, const SparsifyOptions& options,
                           const Run& run);

// The same for a nonnegative matrix, dense or compressed. Masked entries are ignored. Throws
// InputError for a negative or non-finite entry.
template <class T>
SparseRows sparsify_matrix(const Heads<T>& matrix, const Mask& mask, const SparsifyOptions& options,
                           const Run& run);

SparseRows sparsify_compressed(const CompressedRows& matrix, const Mask& mask,
                               const SparsifyOptions& options, const Run& run);

// The nearest other points of each point, of `dims` finite coordinates each: pairs are taken by
// rising distance (of equal ones: by row, then by column), each unless its row has `per_row` of
// them or its column `per_column` (0 for no bound). A row may keep fewer, or none. Weights are
// squared distances, which must not overflow.
SparseRows nearest_points(std::span<const double> points, Index dims, Index per_row,
                          Index per_column, const Run& run);

}  // namespace headfit
