// A base class for folds that need whole rows at once: the rows of a block lie side by side in a
// buffer of the thread, with the columns from the block's first to its last.
#pragma once

#include "headfit/logits/tile.hpp"

namespace headfit {

// How many whole rows a fold should hold: few enough to fit the cache beside the keys.
template <class T>
Index whole_row_block(Index cols) {
  using B = Blocking<T>;
  constexpr Index bytes = Index(1) << 19;
  const Index fits = bytes / std::max<Index>(1, cols * Index(sizeof(T)));
  return std::clamp(fits / B::row_group * B::row_group, B::row_group, B::tile_rows);
}

template <class T>
class WholeRows {
 public:
  T* destination(const RowBlock& block, Index stride) {
    stride_ = stride;
    return rows_.ensure(round_up(block.count, Blocking<T>::row_group) * stride);
  }
  static Index block_rows(const LogitSource<T>& source) {
    return whole_row_block<T>(source.k.rows);
  }
  void begin(const RowBlock&) {}
  void tile(const RowBlock&, const Tile<T>&) {}

 protected:
  T* row(Index r) { return rows_.data() + r * stride_; }
  static Index padded(const RowBlock& block) {
    return round_up(block.col_end - block.col_begin, simd::lanes<T>);
  }

 private:
  Buffer<T> rows_;
  Index stride_ = 0;
};

}  // namespace headfit
