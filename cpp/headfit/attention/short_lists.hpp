// What folds that keep a short list for every row have in common.
#pragma once

#include "headfit/logits/stream.hpp"

namespace headfit {

inline void check_list_length(Index k, Index keys) {
  if (k >= 1 && k <= keys) return;
  throw InputError("k must lie in 1 ... " + std::to_string(keys) + ", the number of keys; got " +
                   std::to_string(k));
}

// Rows of a block. The lists of its rows are at hand while the keys pass by: many rows if lists
// are short.
template <class T>
Index list_rows(const LogitSource<T>& source, Index k) {
  return k <= Blocking<T>::tile_cols ? scan_block(source) : Blocking<T>::tile_rows;
}

}  // namespace headfit
