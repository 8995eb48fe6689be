// Operands laid out for the microkernel, checked for NaN and infinity on the way.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "headfit/scores/microkernel.hpp"
#include "headfit/scores/source.hpp"

namespace headfit {

// Never shrunk, aligned for the widest vectors. Grown by doubling: the rows of a causal
// mask ask for a little more each time.
template <class T>
class Buffer {
 public:
  T* ensure(Index size) {
    if (data_.size() < size) data_.resize(std::max(size, 2 * data_.size()));
    return data_.data();
  }
  T* data() { return data_.data(); }
  const T* data() const { return data_.data(); }

 private:
  Eigen::Array<T, Eigen::Dynamic, 1> data_;
};

inline Index round_up(Index x, Index multiple) { return (x + multiple - 1) / multiple * multiple; }

template <class T>
[[noreturn]] void throw_nonfinite(const char* name, Index head, Index heads, Index row, Index col,
                                  T value) {
  const std::string place = (heads > 1 ? "head " + std::to_string(head) + ", " : std::string()) +
                            "row " + std::to_string(row) + ", column " + std::to_string(col);
  throw NonFiniteError(std::string(name) + " must be finite; got " +
                       (std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf") + " at " + place);
}

// The largest |entry| of some rows, or an error that names the first bad entry.
template <class T, class RowMap>
double checked_max_abs(const char* name, const Heads<T>& x, Index head, Index count,
                       const RowMap& row_at) {
  const auto matrix = x[head];
  T largest = 0;
  for (Index i = 0; i < count; ++i) {
    const auto row = matrix.row(row_at(i));
    if (!row.allFinite()) {
      Index col = 0;
      while (std::isfinite(row[col])) ++col;
      throw_nonfinite(name, head, x.count, row_at(i), col, row[col]);
    }
    if (x.cols > 0) largest = std::max(largest, row.cwiseAbs().maxCoeff());
  }
  return static_cast<double>(largest);
}

// Rows of a matrix as columns of packed panels: panel j holds depth x Blocking::panel
// entries for rows j * panel ...; what lies beyond the last row is zero.
template <class T>
void pack_panel(const MatrixView<T>& x, Index panel, Index valid_rows, T* out) {
  constexpr Index width = Blocking<T>::panel;
  const Index first = panel * width;
  const Index count = std::clamp<Index>(valid_rows - first, 0, width);
  for (Index p = 0; p < x.cols(); ++p) {
    for (Index c = 0; c < count; ++c) out[p * width + c] = x(first + c, p);
    for (Index c = count; c < width; ++c) out[p * width + c] = T(0);
  }
}

// Query rows in groups: group g holds depth x row_group entries, times the scale.
template <class T, class RowMap>
void pack_queries(const MatrixView<T>& q, Index count, const RowMap& row_at, T scale, T* out) {
  constexpr Index group = Blocking<T>::row_group;
  const Index depth = q.cols();
  for (Index i = 0; i < round_up(count, group); ++i) {
    T* place = out + (i / group) * group * depth + i % group;
    if (i < count) {
      const auto row = q.row(row_at(i));
      for (Index p = 0; p < depth; ++p) place[p * group] = row[p] * scale;
    } else {
      for (Index p = 0; p < depth; ++p) place[p * group] = T(0);
    }
  }
}

}  // namespace headfit
