// Sparse targets: what attention should be, how far it may be from that, and the checks of both.
#pragma once

#include <limits>
#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/base/types.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

// An n x n matrix in compressed rows, with sorted columns and no duplicates, and the mask under
// which attention should reproduce it. A view: it owns no array, so whoever reads one checks it.
struct Target {
  Index n = 0;
  const Offset* offsets = nullptr;  // n + 1
  const Column* columns = nullptr;
  const double* weights = nullptr;
  Mask mask = {};

  Offset nonzeros() const { return offsets[n]; }
  std::span<const Column> row_columns(Index i) const {
    return {columns + offsets[i], columns + offsets[i + 1]};
  }
  std::span<const double> row_weights(Index i) const {
    return {weights + offsets[i], weights + offsets[i + 1]};
  }
};

// Any sparse matrix in compressed rows; a view, too.
struct CompressedRows {
  Index rows = 0;
  Index cols = 0;
  const Offset* offsets = nullptr;
  const Column* columns = nullptr;
  const double* weights = nullptr;

  std::span<const Column> row_columns(Index i) const {
    return {columns + offsets[i], columns + offsets[i + 1]};
  }
  // Throws an InputError unless everything that can be read through offsets and columns is there.
  void check_structure() const;
};

// How far a head may be from its target: the three tolerances, with their defaults and their check.
// Row by row, with S the logits of the row and A the target's weights:
struct Tolerances {
  // exp(max S off the support - min S on it) is at most this; strictly between 0 and 1.
  double leak = 0.05;
  // exp(max - min of (S - log A) on the support) is at most 1 + this; finite, at least 0.
  double distortion = 0.1;
  // |S| is at most this wherever the mask allows attention; positive, infinite for no limit.
  double max_logit = std::numeric_limits<double>::infinity();

  bool limits_logits() const { return max_logit < std::numeric_limits<double>::infinity(); }

  // Throws an InputError that names the tolerance and its value. Every public function that takes
  // tolerances calls this first.
  void check() const;
};

// How far from 1 the sum of a row may be, if the caller does not say.
inline constexpr double default_sum_tolerance = 1e-6;
// The sum tolerance that accepts rows of any sum.
inline constexpr double any_sum = std::numeric_limits<double>::infinity();

struct TargetSummary {
  Index nonzeros = 0;
  Index per_row = 0;     // the most nonzeros in a row
  Index per_column = 0;  // the most nonzeros in a column
  double gamma = 1;      // the largest ratio of two weights of one row; it may overflow
};

// Throws a TargetError that names the first offending row (and column) unless columns are sorted
// and in range, weights are positive and finite, every row sums to 1 within `sum_tolerance`,
// nothing lies on a masked position, and a row is empty only if the mask allows it no column.
TargetSummary validate_target(const Target& target, double sum_tolerance, const Run& run);

// The part of this check that memory safety and logarithms depend on: every construction method
// makes it first. Rows may sum to anything, and nothing is required of an empty row.
void check_entries(const Target& target, const Run& run);

// A copy of some rows of a target whose entries were checked. All other rows are empty in it, so
// that nothing is required of them.
class SomeRows {
 public:
  SomeRows(const Target& target, std::span<const Index> rows);

  Target view() const { return {n_, offsets_.data(), columns_.data(), weights_.data(), mask_}; }

 private:
  Index n_;
  Mask mask_;
  std::vector<Offset> offsets_;
  std::vector<Column> columns_;
  std::vector<double> weights_;
};

// The size of the largest blocks of equal size (the last one may be smaller) that a target consists
// of; 0 if there are no blocks of two tokens and more, or only one. Within a block, rows have the
// same columns, but for those after the token itself where attention is causal; and the weights of
// a row are those of the last row of its block, up to a factor. Logarithms may differ by 1e-6.
Index block_size(const Target& target, bool is_causal, const Run& run);

}  // namespace headfit
