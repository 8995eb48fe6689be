// The stream of logit tiles: the only place where blocks of Q are multiplied with K^T. Threads take
// blocks of rows; for each block a fold (fold.hpp) sees the tiles of its logits from left to right.
#pragma once

#include <vector>

#include "headfit/logits/fold.hpp"
#include "headfit/logits/microkernel.hpp"
#include "headfit/logits/pack.hpp"
#include "headfit/logits/tile.hpp"

namespace headfit {

namespace detail {

// What the stream packs beside the keys if the caller asks for nothing.
struct NoKeyExtras {
  Index cols() const { return 0; }
  void pack(Index, Index, const KeyLayouts&, const Run&) const {}
};

// The blocks of rows of a source, with the columns and the tiles that their mask leaves.
template <class T>
class MaskedBlocks {
 public:
  // `may_have_entries`: whether the fold and the keys are made for single entries too.
  // `needs_whole_rows`: whether the fold also reads the tiles that the mask leaves out.
  MaskedBlocks(const LogitSource<T>& source, Index block_rows, bool may_have_entries,
               bool needs_whole_rows)
      : source_(source),
        block_rows_(block_rows),
        may_have_entries_(may_have_entries),
        needs_whole_rows_(needs_whole_rows) {}

  // A block with the columns that its mask allows. Unless it is by entries, is_masked speaks about
  // this block from now on.
  RowBlock block_at(Index head, Index block_index);
  // Whether a sparse mask has no entry in the tile of the current block from `col` on.
  bool is_masked(const RowBlock& block, Index col) const {
    return source_.mask.sparse_offsets &&
           !allowed_tiles_[static_cast<std::size_t>((col - block.col_begin) / B::tile_cols)];
  }

 private:
  using B = Blocking<T>;
  void set_columns(RowBlock& block) const;
  // Finds in which tiles a sparse mask has entries, the first of which begins at the block's first
  // column; or that they are so few that to compute them one by one takes less time.
  void find_entries(RowBlock& block);

  const LogitSource<T>& source_;
  Index block_rows_;
  bool may_have_entries_, needs_whole_rows_;
  std::vector<bool> allowed_tiles_;  // of the current block
};

// The layouts of keys that the blocks of a source need, where a fold takes entries.
template <class T>
KeyLayouts layouts_for(const LogitSource<T>& source, Index block_rows, bool needs_whole_rows,
                       const Run& run);

// What the stream does for every fold alike: it packs the queries of a block of rows, finds the
// columns that the block needs, and computes tiles of finished logits, or entries of rows.
template <class T>
class BlockSource {
 public:
  BlockSource(const LogitSource<T>& source, const PackedKeys<T>& keys, Index block_rows,
              bool takes_entries, bool needs_whole_rows)
      : source_(source),
        blocks_(source, block_rows, takes_entries && keys.layouts().rows, needs_whole_rows),
        keys_(keys),
        query_rows_(source.q),
        finisher_(source),
        block_rows_(block_rows) {}

 protected:
  using B = Blocking<T>;

  // Packs the queries of a block for tiles, and makes it the current one.
  void open(const RowBlock& block);
  // Columns in whole panels where the logits of every row of the block are just scaled products: no
  // soft-cap, bias or edge of the mask changes them, and none can overflow.
  ColumnRange bare_columns(const RowBlock& block) const;
  // A tile in the thread's own memory for the logits of `cols` columns from `col` on.
  Tile<T> own_tile(const RowBlock& block, Index col, Index cols);
  // Computes the logits of a tile of the current block.
  void fill(const RowBlock& block, const Tile<T>& tile);
  // Computes the logits of a row in the first `count` of some ascending columns; the keys of those
  // behind them are fetched already. The logits are valid until the next call, and a panel can be read
  // from each place.
  Entries<T> entries(Index head, Index row, std::span<const Column> columns, Index count);

  Index groups(const RowBlock& block) const {
    return round_up(block.count, B::row_group) / B::row_group;
  }
  QueryGroup<T> queries(Index group) const {
    return {queries_.data() + group * B::row_group * source_.q.cols};
  }
  const T* panel(const RowBlock& block, Index p) const {
    return keys_.panel(block.head / source_.group, p);
  }
  // Whether products of a row or rows may overflow, of which q_max is the largest |entry|.
  bool may_overflow(Index head, T q_max) const;
  // How many multiplications the product of a row group and a panel takes.
  Index group_products() const { return B::row_group * B::panel * source_.q.cols; }

  const LogitSource<T>& source_;
  MaskedBlocks<T> blocks_;
  const PackedKeys<T>& keys_;
  Checkpoints checkpoints_;
  Buffer<T> tile_;

 private:
  HeadRows<T> query_rows_;
  TileFinisher<T> finisher_;
  Index block_rows_;
  Buffer<T> queries_;
  Buffer<T> query_;  // of the row whose entries are computed
  bool may_overflow_ = false;  // whether products of the current block may overflow
};

// Whether a fold can do without tiles where a mask leaves few entries.
template <class F, class T>
inline constexpr bool takes_entries = has_entries<F, T> || (has_limits<F> && !has_sums<F>);

template <class T, class Fold>
class BlockWorker : private BlockSource<T> {
 public:
  BlockWorker(const LogitSource<T>& source, const PackedKeys<T>& keys, Index block_rows, Fold fold)
      : BlockSource<T>(source, keys, block_rows, takes_entries<Fold, T>, has_destination<Fold>),
        fold_(std::move(fold)) {}

  void operator()(Index head, Index block_index) {
    const RowBlock block = this->blocks_.block_at(head, block_index);
    if constexpr (takes_entries<Fold, T>) {
      if (block.by_entries) {
        fold_.begin(block);
        send_entries(block);
        fold_.end(block);
        return;
      }
    }
    this->open(block);
    fold_.begin(block);
    if constexpr (has_limits<Fold>) {
      const ColumnRange bare = this->bare_columns(block);
      send_tiles(block, {block.col_begin, bare.begin});
      send_hits(block, bare);
      send_tiles(block, {bare.end, block.col_end});
    } else {
      send_tiles(block, {block.col_begin, block.col_end});
    }
    fold_.end(block);
  }

 private:
  using B = Blocking<T>;

  void send_entries(const RowBlock& block) {
    const Mask& mask = this->source_.mask;
    const Column* end = mask.sparse_columns + mask.sparse_offsets[this->source_.q.rows];
    for (Index r = 0; r < block.count; ++r) {
      const Index row = this->source_.row_at(block.first + r);
      const auto columns = mask.sparse_row(row);
      const auto count = static_cast<Index>(columns.size());
      // The columns of the next row follow.
      const Index known = std::min<Index>(count + B::lanes, end - columns.data());
      const Entries<T> entries =
          this->entries(block.head, row, {columns.data(), static_cast<std::size_t>(known)}, count);
      if constexpr (has_entries<Fold, T>) {
        fold_.entries(block, r, entries);
      } else {
        search<T>(block, r, entries, fold_);
      }
    }
  }

  void send_tiles(const RowBlock& block, const ColumnRange& cols) {
    for (Index col = cols.begin; col < cols.end; col += B::tile_cols) {
      // Masked tiles are not computed; folds of whole rows get them as -inf.
      const bool is_masked = this->blocks_.is_masked(block, col);
      if (is_masked && !has_destination<Fold>) continue;
      const Tile<T> tile = make_tile(block, col, std::min(B::tile_cols, cols.end - col));
      if (is_masked) {
        hide(tile);
        continue;
      }
      this->fill(block, tile);
      if constexpr (has_limits<Fold> && !has_sums<Fold>) {
        search<T>(block, tile, fold_);
      } else {
        fold_.tile(block, tile);
      }
    }
  }

  void send_hits(const RowBlock& block, const ColumnRange& cols) {
    const Index groups = this->groups(block), depth = this->source_.q.cols;
    const T* limits = fold_.limits(block);
    T* lowest = nullptr;
    if constexpr (has_lowest<Fold>) lowest = fold_.lowest(block);
    T* found = this->tile_.ensure(B::row_group * B::panel);
    const Index part = depth * B::panel / groups;
    const Index last = cols.end / B::panel - 1;
    for (Index p = cols.begin / B::panel; p <= last; ++p) {
      const T* panel = this->panel(block, p);
      const T* next = this->panel(block, std::min(p + 1, last));
      // One checkpoint for all groups of the panel: one for each group would slow scans.
      this->checkpoints_.after(groups * this->group_products());
      for (Index g = 0; g < groups; ++g) {
        ask_for(next + g * part, part);
        const Index first = g * B::row_group;
        const QueryGroup<T> queries = this->queries(g);
        if constexpr (has_sums<Fold>) {
          if (add_exponentials_below(depth, queries, panel, limits + first,
                                     fold_.sums(block).from(first), found)) {
            report<T>(block, first, p * B::panel, found, fold_);
            add_exponentials(found, fold_.sums(block).from(first));
          }
        } else {
          T* least = has_lowest<Fold> ? lowest + first * B::lanes : nullptr;
          if (panel_exceeds<T, has_lowest<Fold>>(depth, queries, panel, limits + first, least,
                                                 found)) {
            report<T>(block, first, p * B::panel, found, fold_);
          }
        }
      }
      if constexpr (has_sums<Fold>) {
        if ((p + 1) % B::sum_panels == 0) fold_.settle(block);
      }
    }
  }

  // Prefetches keys while others are multiplied.
  static void ask_for(const T* keys, Index count) {
    for (Index i = 0; i < count; i += 64 / Index(sizeof(T))) simd::prefetch(keys + i);
  }

  static void hide(const Tile<T>& tile) {
    for (Index r = 0; r < tile.count; ++r) {
      std::fill_n(tile.row(r), tile.padded_cols(), -std::numeric_limits<T>::infinity());
    }
  }

  Tile<T> make_tile(const RowBlock& block, Index col, Index cols) {
    if constexpr (has_destination<Fold>) {
      const Index stride = round_up(block.col_end - block.col_begin, B::panel);
      return {fold_.destination(block, stride) + (col - block.col_begin), stride, block.count, col,
              cols};
    } else {
      return this->own_tile(block, col, cols);
    }
  }

  Fold fold_;
};

}  // namespace detail

// The number of rows of a block for folds that keep little for each row, where the heads have
// `row_count` rows. Large blocks read keys that do not fit the caches less often; blocks are only so
// large that no thread waits long for another to finish its last block.
template <class T>
Index scan_block(const LogitSource<T>& source, Index row_count) {
  constexpr Index rows = Blocking<T>::tile_rows;
  const Index shared_out = source.q.count * row_count / 64;
  return std::clamp(shared_out / rows * rows, rows, 4 * rows);
}
template <class T>
Index scan_block(const LogitSource<T>& source) {
  return scan_block(source, source.row_count());
}

// A multiple of every number of rows that scan_block returns. Rows that are split at multiples of it
// fall into the same blocks as all rows together, and the sums of a row, whose order depends on the
// block, stay the same bit for bit.
inline constexpr Index row_granule = 576;
static_assert(row_granule % (3 * Blocking<float>::tile_rows) == 0 &&
              row_granule % (4 * Blocking<float>::tile_rows) == 0);
static_assert(Blocking<float>::tile_rows == Blocking<double>::tile_rows);

// How keys must be packed for folds of whole rows that take entries.
template <class T>
KeyLayouts whole_row_layouts(const LogitSource<T>& source, const Run& run) {
  return detail::layouts_for(source, WholeRows<T>::block_rows(source), true, run);
}

// Streams the logits of the heads whose keys are packed through folds made by make_fold(),
// one for each thread: for callers that ask the same keys again and again. Folds get entries only if
// the keys are packed for them.
template <class T, class MakeFold>
void stream_tiles(const LogitSource<T>& source, const PackedKeys<T>& keys, const Run& run,
                  MakeFold&& make_fold) {
  using Fold = decltype(make_fold());
  if constexpr (detail::check_fold<Fold, T>()) {
    const Index block_rows = detail::block_rows(source, make_fold);
    const Index blocks = (source.row_count() + block_rows - 1) / block_rows;
    const Index first_query_head = keys.first() * source.group;
    // Where attention is causal, later rows see more keys. Their blocks go first: otherwise threads
    // would wait for the longest ones at the end.
    const bool is_reversed = source.mask.right && !source.mask.left;
    parallel_tasks(keys.heads() * source.group * blocks, run, [&] {
      return [&, worker = detail::BlockWorker<T, Fold>(source, keys, block_rows, make_fold())](
                 Index task) mutable {
        const Index block = task % blocks;
        worker(first_query_head + task / blocks, is_reversed ? blocks - 1 - block : block);
      };
    });
  }
}

// Streams all logits of `source` through folds (fold.hpp) made by make_fold(), one for each thread.
// A fold may need more of each key than its logits, for instance values: extras.cols() numbers,
// which extras.pack(first_key_head, heads, layouts, run) packs before these heads are streamed.
template <class T, class MakeFold, class KeyExtras = detail::NoKeyExtras>
void stream_tiles(const LogitSource<T>& source, const Run& run, MakeFold&& make_fold,
                  KeyExtras&& extras = {}) {
  source.validate();
  KeyLayouts layouts;
  using Fold = decltype(make_fold());
  if constexpr (detail::takes_entries<Fold, T>) {
    layouts = detail::layouts_for(source, detail::block_rows(source, make_fold),
                                  detail::has_destination<Fold>, run);
  }
  // Few heads are packed at a time, so that memory stays O(one head), or 64 MiB if heads are small.
  const Index key_size = layouts.key_size<T>(source.k.cols) + extras.cols();
  const Index head_bytes = source.k.rows * key_size * Index(sizeof(T));
  const Index fitting = head_bytes > 0 ? (Index(64) << 20) / head_bytes : source.k.count;
  const Index heads_at_once = std::max<Index>(1, fitting);
  for (Index head = 0; head < source.k.count; head += heads_at_once) {
    const Index heads = std::min(heads_at_once, source.k.count - head);
    const PackedKeys<T> keys(source, head, heads, run, layouts);
    extras.pack(head, heads, layouts, run);
    stream_tiles(source, keys, run, make_fold);
  }
}

// The logits of the rows and columns that a caller asks for: where two heads are read side by side,
// one is streamed and the other one asked. Each thread has an object of its own.
template <class T>
class LogitReader : private detail::BlockSource<T> {
 public:
  // The source and its packed keys must outlive this object.
  LogitReader(const LogitSource<T>& source, const PackedKeys<T>& keys)
      : detail::BlockSource<T>(source, keys, Blocking<T>::tile_rows, false, true) {}

  // Writes the logits of a block, for its columns; these begin at a whole panel. Rows lie `stride`
  // entries apart, with room for whole row groups and whole panels.
  void read(const RowBlock& block, T* out, Index stride) {
    this->open(block);
    this->fill(block, {out, stride, block.count, block.col_begin, block.col_end - block.col_begin});
  }

  // The logits of a row in ascending columns, valid until the next call. What the source's own mask
  // hides is -inf. Keys must be packed in rows.
  Entries<T> read(Index head, Index row, std::span<const Column> columns) {
    return this->entries(head, row, columns, static_cast<Index>(columns.size()));
  }
};

}  // namespace headfit
