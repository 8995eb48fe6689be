// The logit tile stream: the only place where Q meets K. Row blocks go to threads;
// for each of them a fold sees the tiles of its logits from left to right.
//
// A fold is a class with
//   void begin(const RowBlock&);           // a new block of rows
//   void tile(const RowBlock&, const Tile<T>&);  // may overwrite the tile
//   void end(const RowBlock&);             // all tiles were seen
// and, when it wants whole rows kept, T* destination(const RowBlock&, Index stride)
// which gives the place where the block's rows lie side by side.
//
// A fold that only wants the logits above a limit has, in place of tile,
//   const T* limits(const RowBlock&);      // one a row, padded to whole row groups with inf;
//                                          // the fold may move them as it learns more
//   void hits(const RowBlock&, Index r, Index col, const T* logits, std::uint32_t bits);
// where bit b is set if logits[b], of row r and column col + b, exceeds the limit. Columns
// ascend within a row; a whole panel of logits can be read. Where no mask edge, bias or cap stands
// in the way, the logits then never leave the registers. If it has T* lowest(const RowBlock&) too
// (a vector a row, padded like the limits), the least unmasked logits are kept there, by lanes.
#pragma once

#include "headfit/scores/hits.hpp"
#include "headfit/scores/packed_keys.hpp"
#include "headfit/scores/tile.hpp"

namespace headfit {

namespace detail {

template <class Fold>
inline constexpr bool wants_hits = requires(Fold& f, const RowBlock& b) { f.limits(b); };
template <class Fold>
inline constexpr bool wants_lowest = requires(Fold& f, const RowBlock& b) { f.lowest(b); };

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
                                 static_cast<T>(source_.scale), queries);
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
      block.shared = {std::max(block.shared.begin, open.begin), std::min(block.shared.end, open.end)};
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
      if constexpr (wants_hits<Fold>) {
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
    for (Index p = cols.begin / B::panel; p < cols.end / B::panel; ++p) {
      const T* panel = keys_.panel(block.head / source_.group, p);
      for (Index g = 0; g < groups; ++g) {
        const Index first = g * B::row_group;
        T* least = wants_lowest<Fold> ? lowest + first * B::lanes : nullptr;
        if (panel_exceeds<T, wants_lowest<Fold>>(source_.q.cols, left(queries, g), panel, limits + first,
                                           least, found)) {
          report<T>(block, first, p * B::panel, found, fold_);
        }
      }
    }
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
      for (Index g = 0; g < groups; ++g) {
        T* out = tile.row(g * B::row_group) + (p * B::panel - tile.col);
        multiply_panel<T>(source_.q.cols, left(queries, g), panel, out, tile.stride, false);
      }
    }
  }

  LeftRows<T> left(const T* queries, Index group) const {
    return {queries + group * B::row_group * source_.q.cols, 1, B::row_group};
  }

  const LogitSource<T>& source_;
  PackedKeys<T>& keys_;
  HeadRows<T> query_rows_;
  TileFinisher<T> finisher_;
  Fold fold_;
  Index block_rows_;
  Buffer<T> queries_;
  Buffer<T> tile_;
};

}  // namespace detail

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
template <class T, class MakeFold, class Beside = detail::NothingBeside>
void stream_tiles(const LogitSource<T>& source, const Run& run, MakeFold&& make_fold,
                  Index block_rows = Blocking<T>::tile_rows, Beside&& beside = {}) {
  source.validate();
  // Few heads are packed at a time: memory stays O(one head), or 64 MiB if heads are small.
  const Index head_bytes = source.k.rows * (source.k.cols + beside.cols()) * Index(sizeof(T));
  const Index fitting = head_bytes > 0 ? (Index(64) << 20) / head_bytes : source.k.count;
  const Index heads_at_once = std::max<Index>(1, fitting);
  for (Index head = 0; head < source.k.count; head += heads_at_once) {
    const Index heads = std::min(heads_at_once, source.k.count - head);
    detail::PackedKeys<T> keys(source, head, heads, run);
    beside.pack(head, heads, run);
    stream_tiles(source, keys, run, make_fold, block_rows);
  }
}

}  // namespace headfit
