// Sparse tables of ones, by rows and by columns.
#pragma once

#include <numeric>
#include <span>
#include <vector>

#include "headfit/base/types.hpp"

namespace headfit {

inline std::size_t place(Index i) { return static_cast<std::size_t>(i); }

// A sparse table of ones, row by row: columns[offsets[i]] ... columns[offsets[i + 1] - 1] are the
// distinct columns of row i, in ascending order.
struct SparseTable {
  std::span<const Offset> offsets;
  std::span<const Column> columns;
  Index cols;

  Index rows() const { return static_cast<Index>(offsets.size()) - 1; }
  std::span<const Column> row(Index i) const {
    const auto at = static_cast<std::size_t>(i);
    return columns.subspan(static_cast<std::size_t>(offsets[at]),
                           static_cast<std::size_t>(offsets[at + 1] - offsets[at]));
  }
  // Throws an InputError where offsets or columns lead out of the table.
  void check() const;
};

// The rows of each column, as a table.
struct Transposed {
  std::vector<Offset> offsets;
  std::vector<Column> rows;

  explicit Transposed(const SparseTable& table)
      : offsets(place(table.cols + 1)), rows(table.columns.size()) {
    for (const Column c : table.columns) ++offsets[place(c) + 1];
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
    std::vector<Offset> next(offsets.begin(), offsets.end() - 1);
    for (Index i = 0; i < table.rows(); ++i) {
      for (const Column c : table.row(i)) {
        rows[place(next[place(c)]++)] = static_cast<Column>(i);
      }
    }
  }
  SparseTable view(Index cols) const { return {offsets, rows, cols}; }
};

}  // namespace headfit
