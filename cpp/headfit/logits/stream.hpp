// The logit tile stream: the only place where Q meets K. Row blocks go to threads;
// for each of them a fold (fold.hpp) sees the tiles of its logits from left to right.
#pragma once

#include "headfit/logits/fold.hpp"
#include "headfit/logits/hits.hpp"
#include "headfit/logits/packed_keys.hpp"

namespace headfit {

namespace detail {

template <class T, class Fold>
class BlockWorker {
 public:
  BlockWorker(const LogitSource<T>& source, PackedKeys<T>& keys, Index block_rows, Fold fold)
      : source_(source),
        keys_(keys),
        query_rows_(source.q),
        finisher_(source),
        fold_(std::move(fold)),
        block_rows_(block_rows) {}

  void operator()(Index head, Index block_index) {
    RowBlock block{head, block_index * block_rows_, 0, 0, 0};
    block.count = std::min(block_rows_, source_.row_count() - block.first);
    set_columns(block);

    const auto row_at = [&](Index i) { return source_.row_at(block.first + i); };
    const Index depth = source_.q.cols;
    T* queries = queries_.ensure(round_up(block.count, B::row_group) * depth);
    const T q_max = pack_queries(query_rows_, head, block.count, row_at,
                                 static_cast<T>(source_.scale), queries, pace_);
    const double size = static_cast<double>(depth) * static_cast<double>(q_max) *
                        std::max(keys_.max_abs(head / source_.group), 1.0) *
                        std::max(std::abs(source_.scale), 1.0);
    const bool may_overflow = !(size < static_cast<double>(std::numeric_limits<T>::max()) / 16);

    fold_.begin(block);
    if constexpr (wants_hits<Fold>) {
      const ColumnRange bare = may_overflow ? none(block) : bare_columns(block);
      send_tiles(block, {block.col_begin, bare.begin}, queries, may_overflow);
      send_hits(block, bare, queries);
      send_tiles(block, {bare.end, block.col_end}, queries, may_overflow);
    } else {
      send_tiles(block, {block.col_begin, block.col_end}, queries, may_overflow);
    }
    fold_.end(block);
  }

 private:
  using B = Blocking<T>;

  void set_columns(RowBlock& block) const {
    Index begin = source_.k.rows;
    Index end = 0;
    block.shared = {0, source_.k.rows};
    for (Index r = 0; r < block.count; ++r) {
      const ColumnRange open = source_.mask.range(block.head, source_.row_at(block.first + r),
                                                  source_.q.rows, source_.k.rows);
      block.shared = {std::max(block.shared.begin, open.begin),
                      std::min(block.shared.end, open.end)};
      if (open.begin >= open.end) continue;
      begin = std::min(begin, open.begin);
      end = std::max(end, open.end);
    }
    block.col_end = end;
    block.col_begin = std::min(begin, end) / B::panel * B::panel;
  }

  // Whole panels of columns whose logits are bare products for every row of the block.
  ColumnRange bare_columns(const RowBlock& block) const {
    const bool has_bias = source_.bias.is_set();
    if (source_.softcap > 0 || has_bias || source_.mask.has_pattern()) return none(block);
    const Index begin = round_up(block.shared.begin, B::panel);
    const Index end = block.shared.end / B::panel * B::panel;
    return begin < end ? ColumnRange{begin, end} : none(block);
  }
  static ColumnRange none(const RowBlock& block) { return {block.col_end, block.col_end}; }

  void send_tiles(const RowBlock& block, const ColumnRange& cols, const T* queries,
                  bool may_overflow) {
    for (Index col = cols.begin; col < cols.end; col += B::tile_cols) {
      const Tile<T> tile = make_tile(block, col, cols.end);
      multiply(block, tile, queries);
      finisher_.finish(block, tile, may_overflow);
      if constexpr (wants_hits<Fold> && !wants_sums<Fold>) {
        search<T>(block, tile, fold_);
      } else {
        fold_.tile(block, tile);
      }
    }
  }

  void send_hits(const RowBlock& block, const ColumnRange& cols, const T* queries) {
    const Index groups = round_up(block.count, B::row_group) / B::row_group;
    const T* limits = fold_.limits(block);
    T* lowest = nullptr;
    if constexpr (wants_lowest<Fold>) lowest = fold_.lowest(block);
    T* found = tile_.ensure(B::row_group * B::panel);
    const Index part = source_.q.cols * B::panel / groups;
    const Index last = cols.end / B::panel - 1;
    for (Index p = cols.begin / B::panel; p <= last; ++p) {
      const T* panel = keys_.panel(block.head / source_.group, p);
      const T* next = keys_.panel(block.head / source_.group, std::min(p + 1, last));
      pace_.after(groups * group_products());  // for each group it would slow scans by a quarter
      for (Index g = 0; g < groups; ++g) {
        ask_for(next + g * part, part);
        const Index first = g * B::row_group;
        const auto tell = [&] { report<T>(block, first, p * B::panel, found, fold_); };
        if constexpr (wants_sums<Fold>) {
          add_exponentials<T>(source_.q.cols, left(queries, g), panel, limits + first,
                              fold_.sums(block).from(first), found, tell);
        } else {
          T* least = wants_lowest<Fold> ? lowest + first * B::lanes : nullptr;
          if (panel_exceeds<T, wants_lowest<Fold>>(source_.q.cols, left(queries, g), panel,
                                                   limits + first, least, found)) {
            tell();
          }
        }
      }
      if constexpr (wants_sums<Fold>) {
        if ((p + 1) % B::sum_panels == 0) fold_.settle(block);
      }
    }
  }

  // Keys on their way from memory while others are multiplied.
  static void ask_for(const T* keys, Index count) {
    for (Index i = 0; i < count; i += 64 / Index(sizeof(T))) simd::ei::prefetch(keys + i);
  }

  Tile<T> make_tile(const RowBlock& block, Index col, Index end) {
    const Index cols = std::min(B::tile_cols, end - col);
    if constexpr (requires { fold_.destination(block, Index{}); }) {
      const Index stride = round_up(block.col_end - block.col_begin, B::panel);
      return {fold_.destination(block, stride) + (col - block.col_begin), stride, block.count, col,
              cols};
    } else {
      return {tile_.ensure(round_up(block_rows_, B::row_group) * B::tile_cols), B::tile_cols,
              block.count, col, cols};
    }
  }

  void multiply(const RowBlock& block, const Tile<T>& tile, const T* queries) {
    const Index groups = round_up(block.count, B::row_group) / B::row_group;
    const Index first = tile.col / B::panel;
    const Index last = round_up(tile.col + tile.cols, B::panel) / B::panel;
    for (Index p = first; p < last; ++p) {
      const T* panel = keys_.panel(block.head / source_.group, p);
      pace_.after(groups * group_products());
      for (Index g = 0; g < groups; ++g) {
        T* out = tile.row(g * B::row_group) + (p * B::panel - tile.col);
        multiply_panel<T>(source_.q.cols, left(queries, g), panel, out, tile.stride, false);
      }
    }
  }

  // Of a row group with a panel.
  Index group_products() const { return B::row_group * B::panel * source_.q.cols; }

  LeftRows<T> left(const T* queries, Index group) const {
    return {queries + group * B::row_group * source_.q.cols, 1, B::row_group};
  }

  const LogitSource<T>& source_;
  PackedKeys<T>& keys_;
  HeadRows<T> query_rows_;
  TileFinisher<T> finisher_;
  Fold fold_;
  Index block_rows_;
  Checkpoints pace_;
  Buffer<T> queries_;
  Buffer<T> tile_;
};

}  // namespace detail

// Rows of a block for folds that keep little of a row: so many that keys too large for the caches
// are read seldom, as long as no thread waits long for the last block of another.
template <class T>
Index scan_block(const LogitSource<T>& source) {
  constexpr Index rows = Blocking<T>::tile_rows;
  const Index shared_out = source.q.count * source.row_count() / 64;
  return std::clamp(shared_out / rows * rows, rows, 4 * rows);
}

// Streams the logits of the heads whose keys are packed through folds made by make_fold(),
// one a thread: for those who ask the same keys again and again.
template <class T, class MakeFold>
void stream_tiles(const LogitSource<T>& source, detail::PackedKeys<T>& keys, const Run& run,
                  MakeFold&& make_fold, Index block_rows = Blocking<T>::tile_rows) {
  using Fold = decltype(make_fold());
  const Index blocks = (source.row_count() + block_rows - 1) / block_rows;
  const Index first_query_head = keys.first() * source.group;
  parallel_tasks(keys.heads() * source.group * blocks, run, [&] {
    return [&, worker = detail::BlockWorker<T, Fold>(source, keys, block_rows, make_fold())](
               Index task) mutable { worker(first_query_head + task / blocks, task % blocks); };
  });
}

// Streams all logits of `source` through folds made by make_fold(), one a thread.
// Rows of a block: a multiple of Blocking<T>::row_group is best. What folds need beside each key,
// cols() numbers, is made by pack(first_key_head, heads, run) before the tiles of these heads.
template <class T, class MakeFold, class KeyExtras = detail::NoKeyExtras>
void stream_tiles(const LogitSource<T>& source, const Run& run, MakeFold&& make_fold,
                  Index block_rows = Blocking<T>::tile_rows, KeyExtras&& extras = {}) {
  source.validate();
  // Few heads are packed at a time: memory stays O(one head), or 64 MiB if heads are small.
  const Index head_bytes = source.k.rows * (source.k.cols + extras.cols()) * Index(sizeof(T));
  const Index fitting = head_bytes > 0 ? (Index(64) << 20) / head_bytes : source.k.count;
  const Index heads_at_once = std::max<Index>(1, fitting);
  for (Index head = 0; head < source.k.count; head += heads_at_once) {
    const Index heads = std::min(heads_at_once, source.k.count - head);
    detail::PackedKeys<T> keys(source, head, heads, run);
    extras.pack(head, heads, run);
    stream_tiles(source, keys, run, make_fold, block_rows);
  }
}

}  // namespace headfit
