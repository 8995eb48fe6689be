// What the folds share that keep a short list for every row.
#pragma once

#include "headfit/logits/stream.hpp"

namespace headfit {

inline void check_list_length(Index k, Index keys) {
  if (k >= 1 && k <= keys) return;
  throw InputError("k must lie in 1 ... ", keys, ", the number of keys; got ", k);
}

// The number of rows of a block. All lists of a block should stay in cache while the keys are
// streamed, so blocks are large only if lists are short. It is the same for some rows of a head as
// for all of them, so that the sums of a row are too.
template <class T>
Index list_rows(const LogitSource<T>& source, Index k) {
  return k <= Blocking<T>::tile_cols ? scan_block(source, source.q.rows) : Blocking<T>::tile_rows;
}

}  // namespace headfit
