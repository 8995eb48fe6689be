// Tiles of logits, small enough to stay in cache, and the steps that turn products into logits:
// soft-cap, bias and mask.
#pragma once

#include "headfit/logits/pack.hpp"

namespace headfit {

// A block of rows: consecutive places among the rows that the caller asked for, all of one head.
struct RowBlock {
  Index head;
  Index first;       // place of the first row among the rows asked for
  Index count;       // number of rows
  Index col_begin;   // tiles cover the columns [col_begin, col_end): all that any
  Index col_end;     // row of the block may attend to
  ColumnRange shared{0, 0};  // columns that the mask's window leaves to all rows
};

// `count` rows of logits for the columns col ... col + cols - 1. Masked positions are -inf, and
// rows are padded with -inf to a multiple of the vector width.
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

  // Turns the products in a tile into logits. With `may_overflow` it looks for products that are
  // not finite and throws NonFiniteError if the mask allows their position.
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
  void apply_keys(const RowBlock& block, const Tile<T>& tile, T* x) const;
  void apply_sparse(const Tile<T>& tile, Index row, T* x) const;

  const LogitSource<T>& source_;
};

}  // namespace headfit
