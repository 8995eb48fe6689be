// Operands laid out for the microkernel, checked for NaN and infinity on the way.
#pragma once

#include <cmath>
#include <string>

#include "headfit/base/checkpoint.hpp"
#include "headfit/logits/microkernel.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

template <class T>
[[noreturn]] void throw_nonfinite(const char* name, Index head, Index heads, Index row, Index col,
                                  T value) {
  const std::string place = (heads > 1 ? "head " + std::to_string(head) + ", " : std::string()) +
                            "row " + std::to_string(row) + ", column " + std::to_string(col);
  throw NonFiniteError(std::string(name) + " must be finite; got " +
                       (std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf") + " at " + place);
}

// Names the first bad entry of a row: as it is stored, before it was turned, if it is bad there.
template <class T>
[[noreturn]] void throw_bad_entry(const char* name, Heads<T> x, Index head, Index i,
                                  const RowView<T>& read) {
  x.rotary = {};
  HeadRows<T> reader(x);
  const RowView<T> stored = reader.row(head, i);
  const RowView<T>& bad = stored.allFinite() ? read : stored;
  Index col = 0;
  while (std::isfinite(bad[col])) ++col;
  throw_nonfinite(name, head, x.count, i, col, bad[col]);
}

// A row, and the largest |entry| so far; or an error that names its first bad entry.
template <class T>
RowView<T> checked_row(const char* name, HeadRows<T>& x, Index head, Index i, T& largest) {
  const RowView<T> row = x.row(head, i);
  if (!row.allFinite()) throw_bad_entry(name, x.heads(), head, i, row);
  if (row.size() > 0) largest = std::max(largest, row.cwiseAbs().maxCoeff());
  return row;
}

// Keys as columns of packed panels: panel j holds depth x Blocking::panel entries for rows
// j * panel ...; what lies beyond the last row is zero. Returns the largest |entry|.
template <class T>
T pack_panel(HeadRows<T>& keys, Index head, Index panel, Index valid_rows, T* out,
             Checkpoints& pace) {
  constexpr Index width = Blocking<T>::panel;
  const Index depth = keys.heads().cols;
  const Index first = panel * width;
  const Index count = std::clamp<Index>(valid_rows - first, 0, width);
  T largest = 0;
  for (Index c = 0; c < count; ++c) {
    const RowView<T> row = checked_row("K", keys, head, first + c, largest);
    for (Index p = 0; p < depth; ++p) out[p * width + c] = row[p];
    pace.after(depth);
  }
  for (Index p = 0; p < depth; ++p) std::fill(out + p * width + count, out + (p + 1) * width, T(0));
  return largest;
}

// Query rows in groups: group g holds depth x row_group entries, times the scale. Returns the
// largest |entry| before that.
template <class T, class RowMap>
T pack_queries(HeadRows<T>& queries, Index head, Index count, const RowMap& row_at, T scale,
               T* out, Checkpoints& pace) {
  constexpr Index group = Blocking<T>::row_group;
  const Index depth = queries.heads().cols;
  T largest = 0;
  for (Index i = 0; i < round_up(count, group); ++i) {
    T* place = out + (i / group) * group * depth + i % group;
    if (i < count) {
      const RowView<T> row = checked_row("Q", queries, head, row_at(i), largest);
      for (Index p = 0; p < depth; ++p) place[p * group] = row[p] * scale;
      pace.after(depth);
    } else {
      for (Index p = 0; p < depth; ++p) place[p * group] = T(0);
    }
  }
  return largest;
}

}  // namespace headfit
