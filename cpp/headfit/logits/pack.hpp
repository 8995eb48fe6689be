// Operands laid out for the microkernel, checked for NaN and infinity on the way.
#pragma once

#include "headfit/base/checkpoint.hpp"
#include "headfit/logits/microkernel.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

template <class T>
[[noreturn]] void throw_nonfinite(const char* name, Index head, Index heads, Index row, Index col,
                                  T value);

// A row, and the largest |entry| so far; or an error that names its first bad entry.
template <class T>
RowView<T> checked_row(const char* name, HeadRows<T>& x, Index head, Index i, T& largest);

// Keys as columns of packed panels: panel j holds depth x Blocking::panel entries for rows
// j * panel ...; what lies beyond the last row is zero. Returns the largest |entry|.
template <class T>
T pack_panel(HeadRows<T>& keys, Index head, Index panel, Index valid_rows, T* out,
             Checkpoints& pace);

// Queries at places first ... first + count - 1 of a source, in groups: group g holds
// depth x row_group entries, times the scale. Returns the largest |entry| before that.
template <class T>
T pack_queries(HeadRows<T>& queries, const LogitSource<T>& source, Index head, Index first,
               Index count, T* out, Checkpoints& pace);

}  // namespace headfit
