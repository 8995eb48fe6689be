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
  bool by_entries = false;  // folds get the entries of each row in place of tiles
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

// The logits of one row at the columns where a sparse mask has entries, side by side: what folds get
// in place of tiles where such columns are few. Positions that something else masks are -inf, and the
// row is padded with -inf to a multiple of the vector width.
template <class T>
struct Entries {
  T* data;
  std::span<const Column> columns;

  Index column(Index c) const { return columns[static_cast<std::size_t>(c)]; }
  Index count() const { return static_cast<Index>(columns.size()); }
  Index padded() const { return round_up(count(), Blocking<T>::lanes); }
};

template <class T>
class TileFinisher {
 public:
  explicit TileFinisher(const LogitSource<T>& source)
      : source_(source), besides_sparse_(source.mask.besides_sparse()) {}

  // Turns the products in a tile into logits. With `may_overflow` it looks for products that are
  // not finite and throws NonFiniteError if the mask allows their position.
  void finish(const RowBlock& block, const Tile<T>& tile, bool may_overflow) const;
  // The same for the entries of a row, in any columns, and hides the padding behind them.
  void finish(Index head, Index row, const Entries<T>& entries, bool may_overflow) const;

 private:
  // Turns the products of a row into logits, but for the mask. place(c) is the column of x[c].
  template <class Place>
  void make_logits(Index head, Index row, T* x, Index count, const Place& place,
                   bool may_overflow) const;
  bool allowed(Index head, Index row, Index col) const;
  template <class Place>
  void check_products(Index head, Index row, T* x, Index count, const Place& place) const;
  void cap(T* x, Index cols) const;
  template <class S, class Place>
  void add_bias(Index head, Index row, const S* bias, T* x, Index count, const Place& place) const;
  void apply_range(const RowBlock& block, const Tile<T>& tile, Index row, T* x) const;
  void apply_dense(const RowBlock& block, const Tile<T>& tile, Index row, T* x) const;
  void apply_keys(const RowBlock& block, const Tile<T>& tile, T* x) const;
  void apply_sparse(const Tile<T>& tile, Index row, T* x) const;
  void apply_sparse(Index row, const Entries<T>& entries) const;

  const LogitSource<T>& source_;
  Mask besides_sparse_;
};

}  // namespace headfit
