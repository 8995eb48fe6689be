#include "headfit/logits/tile.hpp"

namespace headfit {
namespace {

template <class T>
constexpr T hidden = -std::numeric_limits<T>::infinity();

// The columns of a tile.
struct TileColumns {
  Index first;
  Index operator()(Index c) const { return first + c; }
};

// Masks the logits whose flags, `step` apart, are false.
template <class T>
void keep_allowed(T* x, Index cols, const bool* allow, Index step) {
  const std::uint8_t* bytes = bytes_of(allow);
  if (step == 1) {  // known to the compiler, which makes vectors of this loop
    for (Index c = 0; c < cols; ++c) x[c] = bytes[c] != 0 ? x[c] : hidden<T>;
  } else {
    for (Index c = 0; c < cols; ++c) x[c] = bytes[c * step] != 0 ? x[c] : hidden<T>;
  }
}

}  // namespace

template <class T>
void TileFinisher<T>::finish(const RowBlock& block, const Tile<T>& tile, bool may_overflow) const {
  for (Index r = 0; r < tile.count; ++r) {
    const Index row = source_.row_at(block.first + r);
    T* x = tile.row(r);
    make_logits(block.head, row, x, tile.cols, TileColumns{tile.col}, may_overflow);
    apply_range(block, tile, row, x);
    if (source_.mask.dense) apply_dense(block, tile, row, x);
    if (source_.mask.keys) apply_keys(block, tile, x);
    if (source_.mask.sparse_offsets) apply_sparse(tile, row, x);
  }
}

template <class T>
void TileFinisher<T>::finish(Index head, Index row, const Entries<T>& entries,
                             bool may_overflow) const {
  T* x = entries.data;
  const auto place = [&](Index c) { return entries.column(c); };
  make_logits(head, row, x, entries.count(), place, may_overflow);
  for (Index c = 0; !besides_sparse_.is_open() && c < entries.count(); ++c) {
    const bool shown = besides_sparse_.allows(head, row, place(c), source_.q.rows, source_.k.rows);
    if (!shown) x[c] = hidden<T>;
  }
  if (source_.mask.sparse_offsets) apply_sparse(row, entries);
  std::fill(x + entries.count(), x + entries.padded(), hidden<T>);
}

template <class T>
template <class Place>
void TileFinisher<T>::make_logits(Index head, Index row, T* x, Index count, const Place& place,
                                  bool may_overflow) const {
  if (may_overflow) check_products(head, row, x, count, place);
  if (source_.softcap > 0) cap(x, count);
  if (!source_.bias.is_set()) return;
  std::visit([&](const auto* bias) { add_bias(head, row, bias, x, count, place); },
             source_.bias.data);
}

template <class T>
bool TileFinisher<T>::allowed(Index head, Index row, Index col) const {
  return source_.mask.allows(head, row, col, source_.q.rows, source_.k.rows);
}

template <class T>
template <class Place>
void TileFinisher<T>::check_products(Index head, Index row, T* x, Index count,
                                     const Place& place) const {
  for (Index c = 0; c < count; ++c) {
    if (!std::isfinite(x[c])) {
      if (allowed(head, row, place(c))) {
        throw_nonfinite("the logits scale * Q K^T", head, source_.q.count, row, place(c), x[c]);
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
template <class S, class Place>
void TileFinisher<T>::add_bias(Index head, Index row, const S* bias, T* x, Index count,
                               const Place& place) const {
  // As wide as the numbers, so that vectors of both have as many entries.
  using Flag = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  const Bias& at = source_.bias;
  const S* b = bias + head * at.head + row * at.row;
  // Whether a logit is not finite for another reason than a bias of -inf, which masks.
  const auto is_wrong = [](T logit, T value) -> Flag {
    return !(std::abs(logit) <= std::numeric_limits<T>::max()) && value != hidden<T>;
  };
  Flag some_wrong = 0;
  const auto add = [&](auto step) {
    for (Index c = 0; c < count; ++c) {
      const T value = as<T>(b[place(c) * step]);
      x[c] += value;
      some_wrong |= is_wrong(x[c], value);
    }
  };
  if (at.col == 1) {
    if constexpr (std::is_same_v<Place, TileColumns>) {
      simd::prefetch_run(b + place(count), std::min(count, source_.k.rows - place(count)));
    }
    add(std::integral_constant<Index, 1>());  // as in keep_allowed
  } else {
    add(at.col);
  }
  for (Index c = 0; some_wrong && c < count; ++c) {
    const T value = as<T>(b[place(c) * at.col]);
    if (is_wrong(x[c], value) && allowed(head, row, place(c))) {
      const bool from_bias = !std::isfinite(value);
      throw_nonfinite(from_bias ? "bias (-inf masks, other values)" : "logits + bias", head,
                      source_.q.count, row, place(c), from_bias ? value : x[c]);
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
  if (m.dense_col == 1) {
    // Rows lie far apart in memory: what the next tile reads of this one is fetched meanwhile.
    const Index left = source_.k.rows - tile.col - tile.cols;
    simd::prefetch_run(bytes_of(allow) + tile.cols, std::min(tile.cols, left));
  }
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
  const auto end = std::lower_bound(next, columns.end(), static_cast<Column>(tile.col + tile.cols));
  if (next == end || *(end - 1) - *next == end - next - 1) {  // none, or a run
    const Index first = next == end ? 0 : *next - tile.col;
    std::fill(x, x + first, hidden<T>);
    std::fill(x + first + (end - next), x + tile.padded_cols(), hidden<T>);
    return;
  }
  for (Index col = 0; col < tile.padded_cols(); col += Blocking<T>::tile_cols) {
    bool allowed[Blocking<T>::tile_cols] = {};
    const Index first = tile.col + col, cols = std::min(Blocking<T>::tile_cols, tile.cols - col);
    for (; next != columns.end() && *next < first + cols; ++next) allowed[*next - first] = true;
    keep_allowed(x + col, std::min(Blocking<T>::tile_cols, tile.padded_cols() - col), allowed, 1);
  }
}

template <class T>
void TileFinisher<T>::apply_sparse(Index row, const Entries<T>& entries) const {
  const auto columns = source_.mask.sparse_row(row);
  if (columns.data() == entries.columns.data()) return;  // they are the row itself
  auto next = columns.begin();
  for (Index c = 0; c < entries.count(); ++c) {
    next = std::find_if(next, columns.end(), [&](Column col) { return col >= entries.column(c); });
    if (next == columns.end() || *next != entries.column(c)) entries.data[c] = hidden<T>;
  }
}

template class TileFinisher<float>;
template class TileFinisher<double>;

}  // namespace headfit
