// A tile of logits in cache, and what turns raw products into logits: soft-cap,
// bias and mask.
#pragma once

#include "headfit/logits/pack.hpp"

namespace headfit {

// Consecutive places of the rows asked for, all of one head.
struct RowBlock {
  Index head;
  Index first;       // place of the first row among the rows asked for
  Index count;       // rows of this block
  Index col_begin;   // tiles cover [col_begin, col_end), which holds every column
  Index col_end;     // that any row of the block may attend to
  ColumnRange shared{0, 0};  // what the mask's range leaves open for all of its rows
};

// `count` rows of logits for columns col ... col + cols - 1. Rows are padded to a
// multiple of the vector width with -inf, and masked positions are -inf.
template <class T>
struct Tile {
  T* data;
  Index stride;
  Index count;
  Index col;
  Index cols;

  T* row(Index r) const { return data + r * stride; }
  Index padded_cols() const { return round_up(cols, Blocking<T>::lanes); }
};

template <class T>
class TileFinisher {
 public:
  explicit TileFinisher(const LogitSource<T>& source) : source_(source) {}

  // From products to logits. `may_overflow` asks for the search for non-finite products.
  void finish(const RowBlock& block, const Tile<T>& tile, bool may_overflow) const;

 private:
  bool allowed(const RowBlock& block, Index row, Index col) const;
  void check_products(const RowBlock& block, const Tile<T>& tile, Index row, T* x) const;
  void cap(T* x, Index cols) const;
  void add_bias(const RowBlock& block, const Tile<T>& tile, Index row, T* x) const;
  template <class S>
  void add_bias(const RowBlock& block, const Tile<T>& tile, Index row, const S* bias, T* x) const;
  void apply_range(const RowBlock& block, const Tile<T>& tile, Index row, T* x) const;
  void apply_dense(const RowBlock& block, const Tile<T>& tile, Index row, T* x) const;
  void apply_sparse(const Tile<T>& tile, Index row, T* x) const;

  const LogitSource<T>& source_;
};

}  // namespace headfit
