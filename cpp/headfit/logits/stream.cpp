#include "headfit/logits/stream.hpp"

namespace headfit::detail {
namespace {

ColumnRange none(const RowBlock& block) { return {block.col_end, block.col_end}; }

}  // namespace

template <class T>
RowBlock BlockSource<T>::block_at(Index head, Index block_index) const {
  RowBlock block{head, block_index * block_rows_, 0, 0, 0};
  block.count = std::min(block_rows_, source_.row_count() - block.first);
  set_columns(block);
  return block;
}

template <class T>
void BlockSource<T>::open(const RowBlock& block) {
  const Index depth = source_.q.cols;
  T* queries = queries_.ensure(round_up(block.count, B::row_group) * depth);
  const T q_max = pack_queries(query_rows_, source_, block.head, block.first, block.count, queries,
                               checkpoints_);
  const double size = static_cast<double>(depth) * static_cast<double>(q_max) *
                      std::max(keys_.max_abs(block.head / source_.group), 1.0) *
                      std::max(std::abs(source_.scale), 1.0);
  may_overflow_ = !(size < static_cast<double>(std::numeric_limits<T>::max()) / 16);
}

template <class T>
void BlockSource<T>::find_allowed_tiles(const RowBlock& block) {
  if (!source_.mask.sparse_offsets) return;
  const Index cols = block.col_end - block.col_begin;
  allowed_tiles_.assign(static_cast<std::size_t>(round_up(cols, B::tile_cols) / B::tile_cols),
                        false);
  for (Index r = 0; r < block.count; ++r) {
    for (const Column col : source_.mask.sparse_row(source_.row_at(block.first + r))) {
      if (col < block.col_begin || col >= block.col_end) continue;  // outside the window too
      allowed_tiles_[static_cast<std::size_t>((col - block.col_begin) / B::tile_cols)] = true;
    }
  }
}

template <class T>
void BlockSource<T>::set_columns(RowBlock& block) const {
  Index begin = source_.k.rows;
  Index end = 0;
  block.shared = {0, source_.k.rows};
  for (Index r = 0; r < block.count; ++r) {
    const Index row = source_.row_at(block.first + r);
    ColumnRange open = source_.mask.range(block.head, row, source_.q.rows, source_.k.rows);
    block.shared = {std::max(block.shared.begin, open.begin), std::min(block.shared.end, open.end)};
    if (source_.mask.sparse_offsets) {
      const auto columns = source_.mask.sparse_row(row);
      if (columns.empty()) continue;
      open = {std::max<Index>(open.begin, columns.front()),
              std::min<Index>(open.end, columns.back() + Index(1))};
    }
    if (open.begin >= open.end) continue;
    begin = std::min(begin, open.begin);
    end = std::max(end, open.end);
  }
  block.col_end = end;
  block.col_begin = std::min(begin, end) / B::panel * B::panel;
}

template <class T>
ColumnRange BlockSource<T>::bare_columns(const RowBlock& block) const {
  const bool has_bias = source_.bias.is_set();
  if (may_overflow_ || source_.softcap > 0 || has_bias || source_.mask.has_pattern()) {
    return none(block);
  }
  const Index begin = round_up(block.shared.begin, B::panel);
  const Index end = block.shared.end / B::panel * B::panel;
  return begin < end ? ColumnRange{begin, end} : none(block);
}

template <class T>
Tile<T> BlockSource<T>::own_tile(const RowBlock& block, Index col, Index cols) {
  return {tile_.ensure(round_up(block_rows_, B::row_group) * B::tile_cols), B::tile_cols,
          block.count, col, cols};
}

template <class T>
void BlockSource<T>::fill(const RowBlock& block, const Tile<T>& tile) {
  const Index groups = this->groups(block);
  const Index first = tile.col / B::panel;
  const Index last = round_up(tile.col + tile.cols, B::panel) / B::panel;
  for (Index p = first; p < last; ++p) {
    const T* keys = panel(block, p);
    checkpoints_.after(groups * group_products());
    T* out = tile.data + (p * B::panel - tile.col);
    multiply_panel<Product::stored>(groups, source_.q.cols, queries(0), keys, out, tile.stride);
  }
  finisher_.finish(block, tile, may_overflow_);
}

template <class T>
void keep_lowest(const Tile<T>& tile, T* lowest) {
  const auto hidden = simd::fill<T>(-std::numeric_limits<T>::infinity());
  const auto none = simd::fill<T>(std::numeric_limits<T>::infinity());
  for (Index r = 0; r < tile.count; ++r) {
    T* place = lowest + r * simd::lanes<T>;
    auto least = simd::load(place);
    for (Index c = 0; c < tile.padded_cols(); c += simd::lanes<T>) {
      const auto x = simd::load(tile.row(r) + c);
      least = simd::pmin(least, simd::pselect(simd::pcmp_eq(x, hidden), none, x));
    }
    simd::store(place, least);
  }
}

template void keep_lowest(const Tile<float>&, float*);
template void keep_lowest(const Tile<double>&, double*);
template class BlockSource<float>;
template class BlockSource<double>;

}  // namespace headfit::detail
