#include "headfit/logits/stream.hpp"

#include <atomic>

namespace headfit::detail {
namespace {

// One entry takes about as long as so many places of a tile, and a masked tile of whole rows, which is
// filled and read but not multiplied, as long as so many tenths of another tile.
constexpr Index cells_per_entry = 5;
constexpr Index tenths_of_masked_tile = 3;

ColumnRange none(const RowBlock& block) { return {block.col_end, block.col_end}; }

}  // namespace

template <class T>
RowBlock MaskedBlocks<T>::block_at(Index head, Index block_index) {
  RowBlock block{head, block_index * block_rows_, 0, 0, 0};
  block.count = std::min(block_rows_, source_.row_count() - block.first);
  set_columns(block);
  if (source_.mask.sparse_offsets) find_entries(block);
  return block;
}

template <class T>
void BlockSource<T>::open(const RowBlock& block) {
  const Index depth = source_.q.cols;
  T* queries = queries_.ensure(round_up(block.count, B::row_group) * depth);
  const T q_max = pack_queries(query_rows_, source_, block.head, block.first, block.count, queries,
                               checkpoints_);
  may_overflow_ = may_overflow(block.head, q_max);
}

template <class T>
bool BlockSource<T>::may_overflow(Index head, T q_max) const {
  const double largest_sum = static_cast<double>(source_.q.cols) * static_cast<double>(q_max) *
                             std::max(keys_.max_abs(head / source_.group), 1.0) *
                             std::max(std::abs(source_.scale), 1.0);
  return !(largest_sum < static_cast<double>(std::numeric_limits<T>::max()) / 16);
}

template <class T>
void MaskedBlocks<T>::find_entries(RowBlock& block) {
  const Index cols = block.col_end - block.col_begin;
  allowed_tiles_.assign(static_cast<std::size_t>(round_up(cols, B::tile_cols) / B::tile_cols),
                        false);
  const auto row = [&](Index r) {
    return source_.mask.sparse_row(source_.row_at(block.first + r));
  };
  Index entries = 0, tiles = 0;
  const Index tenths_of_masked = needs_whole_rows_ ? tenths_of_masked_tile : 0;
  for (Index r = 0; r < block.count; ++r) entries += static_cast<Index>(row(r).size());
  // Rows that pad the last row group are not counted, lest the last block differ from all others.
  const Index tile_size = B::tile_cols * block.count;
  for (Index r = 0; r < block.count; ++r) {
    const auto columns = row(r);
    auto at = columns.begin();
    Index next = block.col_begin;  // where the next tile begins, as the columns ascend
    for (;;) {
      if (at != columns.end() && *at < next) {
        const Index most = std::min<Index>(columns.end() - at, next - *at);  // that are before it
        at = std::lower_bound(at + 1, at + most, static_cast<Column>(next));
      }
      if (at == columns.end() || *at >= block.col_end) break;  // outside the window too
      const Index col = *at - block.col_begin;
      const auto tile = static_cast<std::size_t>(col / B::tile_cols);
      next = std::min(*at++ + B::tile_cols - col % B::tile_cols, block.col_end);
      if (allowed_tiles_[tile]) continue;
      allowed_tiles_[tile] = true;
      const Index masked = static_cast<Index>(allowed_tiles_.size()) - ++tiles;
      const Index tenths = 10 * tiles + tenths_of_masked * masked;
      const bool are_few = 10 * cells_per_entry * entries < tenths * tile_size;
      block.by_entries = may_have_entries_ && are_few;
      if (block.by_entries) return;  // as soon as that is clear
    }
  }
  if (tiles == 0) block.by_entries = may_have_entries_;
}

template <class T>
void MaskedBlocks<T>::set_columns(RowBlock& block) const {
  Index begin = source_.k.rows;
  Index end = 0;
  block.shared = {0, source_.k.rows};
  for (Index r = 0; r < block.count; ++r) {
    const Index row = source_.row_at(block.first + r);
    const Mask& mask = source_.mask;
    const ColumnRange open = mask.range(block.head, row, source_.q.rows, source_.k.rows);
    block.shared = {std::max(block.shared.begin, open.begin), std::min(block.shared.end, open.end)};
    const ColumnRange own = mask.columns(block.head, row, source_.q.rows, source_.k.rows);
    if (own.begin >= own.end) continue;
    begin = std::min(begin, own.begin);
    end = std::max(end, own.end);
  }
  block.col_end = end;
  block.col_begin = std::min(begin, end) / B::panel * B::panel;
}

template <class T>
KeyLayouts layouts_for(const LogitSource<T>& source, Index block_rows, bool needs_whole_rows,
                       const Run& run) {
  if (!source.mask.sparse_offsets) return {};
  std::atomic<bool> panels = false, rows = false;
  const Index blocks = (source.row_count() + block_rows - 1) / block_rows;
  parallel_tasks(source.q.count * blocks, run, [&] {
    return [&, masked = MaskedBlocks<T>(source, block_rows, true, needs_whole_rows)](
               Index task) mutable {
      const RowBlock block = masked.block_at(task / blocks, task % blocks);
      if (block.col_begin >= block.col_end) return;  // nothing is computed
      (block.by_entries ? rows : panels).store(true, std::memory_order_relaxed);
    };
  });
  return {panels || !rows, rows};
}

template <class T>
Entries<T> BlockSource<T>::entries(Index head, Index row, std::span<const Column> columns,
                                   Index count) {
  const Index depth = source_.q.cols, width = keys_.row_width();
  T* query = query_.ensure(width);
  T q_max = 0;
  const RowView<T> stored = checked_row("Q", query_rows_, head, row, q_max);
  for (Index p = 0; p < depth; ++p) query[p] = stored[p] * static_cast<T>(source_.scale);
  std::fill(query + depth, query + width, -T(0));
  T* x = tile_.ensure(count + B::lanes + B::panel);
  checkpoints_.after((count + 1) * depth);
  multiply_entries(width, query, keys_.rows(head / source_.group), columns, count, x);
  const Entries<T> entries{x, columns.first(static_cast<std::size_t>(count))};
  finisher_.finish(head, row, entries, may_overflow(head, q_max));
  return entries;
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

template KeyLayouts layouts_for(const LogitSource<float>&, Index, bool, const Run&);
template KeyLayouts layouts_for(const LogitSource<double>&, Index, bool, const Run&);
template class MaskedBlocks<float>;
template class MaskedBlocks<double>;
template class BlockSource<float>;
template class BlockSource<double>;

}  // namespace headfit::detail
