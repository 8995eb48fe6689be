#include "headfit/logits/tile.hpp"

namespace headfit {
namespace {

template <class T>
constexpr T hidden = -std::numeric_limits<T>::infinity();

// Masks the logits whose flags, `step` apart, are false.
template <class T>
void keep_allowed(T* x, Index cols, const bool* allow, Index step) {
  const std::uint8_t* bytes = bytes_of(allow);
  for (Index c = 0; c < cols; ++c) x[c] = bytes[c * step] != 0 ? x[c] : hidden<T>;
}

}  // namespace

template <class T>
void TileFinisher<T>::finish(const RowBlock& block, const Tile<T>& tile, bool may_overflow) const {
  for (Index r = 0; r < tile.count; ++r) {
    const Index row = source_.row_at(block.first + r);
    T* x = tile.row(r);
    if (may_overflow) check_products(block, tile, row, x);
    if (source_.softcap > 0) cap(x, tile.cols);
    if (source_.bias.is_set()) add_bias(block, tile, row, x);
    apply_range(block, tile, row, x);
    if (source_.mask.dense) apply_dense(block, tile, row, x);
    if (source_.mask.keys) apply_keys(block, tile, x);
    if (source_.mask.sparse_offsets) apply_sparse(tile, row, x);
  }
}

template <class T>
bool TileFinisher<T>::allowed(const RowBlock& block, Index row, Index col) const {
  return source_.mask.allows(block.head, row, col, source_.q.rows, source_.k.rows);
}

template <class T>
void TileFinisher<T>::check_products(const RowBlock& block, const Tile<T>& tile, Index row,
                                     T* x) const {
  for (Index c = 0; c < tile.cols; ++c) {
    if (!std::isfinite(x[c])) {
      if (allowed(block, row, tile.col + c)) {
        throw_nonfinite("the logits scale * Q K^T", block.head, source_.q.count, row, tile.col + c,
                        x[c]);
      }
      x[c] = T(0);
    }
  }
}

template <class T>
void TileFinisher<T>::cap(T* x, Index cols) const {
  const T c = static_cast<T>(source_.softcap);
  Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>> row(x, cols);
  row = (row / c).tanh() * c;
}

template <class T>
void TileFinisher<T>::add_bias(const RowBlock& block, const Tile<T>& tile, Index row, T* x) const {
  std::visit([&](const auto* bias) { add_bias(block, tile, row, bias, x); }, source_.bias.data);
}

template <class T>
template <class S>
void TileFinisher<T>::add_bias(const RowBlock& block, const Tile<T>& tile, Index row, const S* bias,
                               T* x) const {
  const Bias& at = source_.bias;
  const S* b = bias + block.head * at.head + row * at.row + tile.col * at.col;
  for (Index c = 0; c < tile.cols; ++c) {
    const T value = as<T>(b[c * at.col]);
    x[c] += value;
    const bool is_finite_or_hidden = x[c] <= std::numeric_limits<T>::max() && value != -hidden<T>;
    if ((!is_finite_or_hidden || (x[c] == hidden<T> && value != hidden<T>)) &&
        allowed(block, row, tile.col + c)) {
      const bool from_bias = !std::isfinite(value);
      throw_nonfinite(from_bias ? "bias (-inf masks, other values)" : "logits + bias", block.head,
                      source_.q.count, row, tile.col + c, from_bias ? value : x[c]);
    }
  }
}

template <class T>
void TileFinisher<T>::apply_range(const RowBlock& block, const Tile<T>& tile, Index row,
                                  T* x) const {
  const ColumnRange open = source_.mask.range(block.head, row, source_.q.rows, source_.k.rows);
  const Index begin = std::clamp<Index>(open.begin - tile.col, 0, tile.padded_cols());
  const Index end = std::clamp<Index>(open.end - tile.col, begin, tile.padded_cols());
  std::fill(x, x + begin, hidden<T>);
  std::fill(x + end, x + tile.padded_cols(), hidden<T>);
}

template <class T>
void TileFinisher<T>::apply_dense(const RowBlock& block, const Tile<T>& tile, Index row,
                                  T* x) const {
  const Mask& m = source_.mask;
  const bool* allow =
      m.dense + block.head * m.dense_head + row * m.dense_row + tile.col * m.dense_col;
  keep_allowed(x, tile.cols, allow, m.dense_col);
}

template <class T>
void TileFinisher<T>::apply_keys(const RowBlock& block, const Tile<T>& tile, T* x) const {
  const Mask& m = source_.mask;
  keep_allowed(x, tile.cols, m.keys + block.head * m.keys_head + tile.col * m.keys_col, m.keys_col);
}

template <class T>
void TileFinisher<T>::apply_sparse(const Tile<T>& tile, Index row, T* x) const {
  const auto columns = source_.mask.sparse_row(row);
  auto next = std::lower_bound(columns.begin(), columns.end(), static_cast<Column>(tile.col));
  Index hide_from = 0;  // all columns of the tile before this one are settled
  for (; next != columns.end() && *next < tile.col + tile.cols; ++next) {
    std::fill(x + hide_from, x + (*next - tile.col), hidden<T>);
    hide_from = *next - tile.col + 1;
  }
  std::fill(x + hide_from, x + tile.padded_cols(), hidden<T>);
}

template class TileFinisher<float>;
template class TileFinisher<double>;

}  // namespace headfit
