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
  void finish(const RowBlock& block, const Tile<T>& tile, bool may_overflow) const {
    for (Index r = 0; r < tile.count; ++r) {
      const Index row = source_.row_at(block.first + r);
      T* x = tile.row(r);
      if (may_overflow) check_products(block, tile, row, x);
      if (source_.softcap > 0) cap(x, tile.cols);
      if (source_.bias.is_set()) add_bias(block, tile, row, x);
      apply_range(block, tile, row, x);
      if (source_.mask.dense) apply_dense(block, tile, row, x);
      if (source_.mask.sparse_offsets) apply_sparse(tile, row, x);
    }
  }

 private:
  static constexpr T hidden = -std::numeric_limits<T>::infinity();

  bool allowed(const RowBlock& block, Index row, Index col) const {
    return source_.mask.allows(block.head, row, col, source_.q.rows, source_.k.rows);
  }

  void check_products(const RowBlock& block, const Tile<T>& tile, Index row, T* x) const {
    for (Index c = 0; c < tile.cols; ++c) {
      if (!std::isfinite(x[c])) {
        if (allowed(block, row, tile.col + c)) {
          throw_nonfinite("the logits scale * Q K^T", block.head, source_.q.count, row,
                          tile.col + c, x[c]);
        }
        x[c] = T(0);
      }
    }
  }

  void cap(T* x, Index cols) const {
    const T c = static_cast<T>(source_.softcap);
    Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>> row(x, cols);
    row = (row / c).tanh() * c;
  }

  void add_bias(const RowBlock& block, const Tile<T>& tile, Index row, T* x) const {
    std::visit([&](const auto* bias) { add_bias(block, tile, row, bias, x); }, source_.bias.data);
  }

  template <class S>
  void add_bias(const RowBlock& block, const Tile<T>& tile, Index row, const S* bias, T* x) const {
    const Bias& at = source_.bias;
    const S* b = bias + block.head * at.head + row * at.row + tile.col * at.col;
    for (Index c = 0; c < tile.cols; ++c) {
      const T value = as<T>(b[c * at.col]);
      x[c] += value;
      const bool is_finite_or_hidden = x[c] <= std::numeric_limits<T>::max() && value != -hidden;
      if ((!is_finite_or_hidden || (x[c] == hidden && value != hidden)) &&
          allowed(block, row, tile.col + c)) {
        const bool from_bias = !std::isfinite(value);
        throw_nonfinite(from_bias ? "bias (-inf masks, other values)" : "logits + bias", block.head,
                        source_.q.count, row, tile.col + c, from_bias ? value : x[c]);
      }
    }
  }

  void apply_range(const RowBlock& block, const Tile<T>& tile, Index row, T* x) const {
    const ColumnRange open =
        source_.mask.range(block.head, row, source_.q.rows, source_.k.rows);
    const Index begin = std::clamp<Index>(open.begin - tile.col, 0, tile.padded_cols());
    const Index end = std::clamp<Index>(open.end - tile.col, begin, tile.padded_cols());
    std::fill(x, x + begin, hidden);
    std::fill(x + end, x + tile.padded_cols(), hidden);
  }

  void apply_dense(const RowBlock& block, const Tile<T>& tile, Index row, T* x) const {
    const Mask& m = source_.mask;
    const bool* allow =
        m.dense + block.head * m.dense_head + row * m.dense_row + tile.col * m.dense_col;
    for (Index c = 0; c < tile.cols; ++c) x[c] = allow[c * m.dense_col] ? x[c] : hidden;
  }

  void apply_sparse(const Tile<T>& tile, Index row, T* x) const {
    const Mask& m = source_.mask;
    const Column* last = m.sparse_columns + m.sparse_offsets[row + 1];
    const Column* next = std::lower_bound(m.sparse_columns + m.sparse_offsets[row], last,
                                          static_cast<Column>(tile.col));
    for (Index c = 0; c < tile.cols; ++c) {
      if (next != last && *next == tile.col + c) {
        ++next;
      } else {
        x[c] = hidden;
      }
    }
  }

  const LogitSource<T>& source_;
};

}  // namespace headfit
