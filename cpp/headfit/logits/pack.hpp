// Lays out operands for the microkernel, and checks them for NaN and infinity on the way.
#pragma once

#include "headfit/base/checkpoint.hpp"
#include "headfit/logits/microkernel.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

template <class T>
[[noreturn]] void throw_nonfinite(const char* name, Index head, Index heads, Index row, Index col,
                                  T value);

// Returns a row and raises `largest` to its largest |entry|. Throws NonFiniteError, which names the
// entry, if one is not finite.
template <class T>
RowView<T> checked_row(const char* name, HeadRows<T>& x, Index head, Index i, T& largest);

// Packs keys as the columns of a panel: panel j holds depth x Blocking::panel entries, for the keys
// from j * panel on. Places beyond the last key are zero. Returns the largest |entry|.
template <class T>
T pack_panel(HeadRows<T>& keys, Index head, Index panel, Index valid_rows, T* out,
             Checkpoints& pace);

// Packs the queries at places first ... first + count - 1 of a source, times the scale, in groups:
// group g holds depth x row_group entries. Returns the largest |entry| before the scale is applied.
template <class T>
T pack_queries(HeadRows<T>& queries, const LogitSource<T>& source, Index head, Index first,
               Index count, T* out, Checkpoints& pace);

}  // namespace headfit
