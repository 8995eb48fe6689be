// The logit tile stream: the only place where Q meets K. Row blocks go to threads;
// for each of them a fold sees the tiles of its logits from left to right.
//
// A fold is a class with
//   void begin(const RowBlock&);           // a new block of rows
//   void tile(const RowBlock&, const Tile<T>&);  // may overwrite the tile
//   void end(const RowBlock&);             // all tiles were seen
// and, when it wants whole rows kept, T* destination(const RowBlock&, Index stride)
// which gives the place where the block's rows lie side by side.
#pragma once

#include "headfit/base/threads.hpp"
#include "headfit/scores/tile.hpp"

namespace headfit {

namespace detail {

// The keys of a few heads, packed, with the largest |entry| of each.
template <class T>
class PackedKeys {
 public:
  PackedKeys(const LogitSource<T>& source, Index first_head, Index heads, const Run& run)
      : first_(first_head),
        panels_(round_up(source.k.rows, Blocking<T>::panel) / Blocking<T>::panel),
        panel_size_(source.k.cols * Blocking<T>::panel),
        max_abs_(static_cast<std::size_t>(heads), 0.0) {
    data_.ensure(heads * panels_ * panel_size_);
    constexpr Index per_task = 64;
    const Index tasks = (panels_ + per_task - 1) / per_task;
    std::vector<double> task_max(static_cast<std::size_t>(heads * tasks), 0.0);
    parallel_for(heads * tasks, run, [&](Index task) {
      const Index head = first_ + task / tasks;
      const Index begin = task % tasks * per_task;
      const Index end = std::min(begin + per_task, panels_);
      const Index rows = valid_rows(source, head);
      const Index first_row = begin * Blocking<T>::panel;
      const Index count = std::clamp<Index>(rows - first_row, 0, (end - begin) * Blocking<T>::panel);
      task_max[static_cast<std::size_t>(task)] = checked_max_abs(
          "K", source.k, head, count, [&](Index i) { return first_row + i; });
      for (Index p = begin; p < end; ++p) {
        pack_panel<T>(source.k[head], p, rows, panel(head, p));
      }
    });
    for (std::size_t t = 0; t < task_max.size(); ++t) {
      double& largest = max_abs_[t / static_cast<std::size_t>(tasks)];
      largest = std::max(largest, task_max[t]);
    }
  }

  T* panel(Index head, Index p) {
    return data_.data() + ((head - first_) * panels_ + p) * panel_size_;
  }
  double max_abs(Index head) const { return max_abs_[static_cast<std::size_t>(head - first_)]; }

 private:
  // Padding keys are never read: a key counts if some query head that reads it has it.
  static Index valid_rows(const LogitSource<T>& source, Index key_head) {
    if (!source.mask.key_lengths) return source.k.rows;
    const Index* lengths = source.mask.key_lengths + key_head * source.group;
    return *std::max_element(lengths, lengths + source.group);
  }

  Index first_;
  Index panels_;
  Index panel_size_;
  std::vector<double> max_abs_;
  Buffer<T> data_;
};

template <class T, class Fold>
class BlockWorker {
 public:
  BlockWorker(const LogitSource<T>& source, PackedKeys<T>& keys, Index block_rows, Fold fold)
      : source_(source),
        keys_(keys),
        finisher_(source),
        fold_(std::move(fold)),
        block_rows_(block_rows),
        blocks_((source.row_count() + block_rows - 1) / block_rows) {}

  void operator()(Index head, Index block_index) {
    RowBlock block{head, block_index * block_rows_, 0, 0, 0};
    block.count = std::min(block_rows_, source_.row_count() - block.first);
    set_columns(block);

    const auto row_at = [&](Index i) { return source_.row_at(block.first + i); };
    const Index depth = source_.q.cols;
    const double q_max = checked_max_abs("Q", source_.q, head, block.count, row_at);
    T* queries = queries_.ensure(round_up(block.count, B::row_group) * depth);
    pack_queries<T>(source_.q[head], block.count, row_at, static_cast<T>(source_.scale), queries);
    const double size = static_cast<double>(depth) * q_max *
                        std::max(keys_.max_abs(head / source_.group), 1.0) *
                        std::max(std::abs(source_.scale), 1.0);
    const bool may_overflow = !(size < static_cast<double>(std::numeric_limits<T>::max()) / 16);

    fold_.begin(block);
    for (Index col = block.col_begin; col < block.col_end; col += B::tile_cols) {
      const Tile<T> tile = make_tile(block, col);
      multiply(block, tile, queries);
      finisher_.finish(block, tile, may_overflow);
      fold_.tile(block, tile);
    }
    fold_.end(block);
  }

  Index blocks() const { return blocks_; }

 private:
  using B = Blocking<T>;

  void set_columns(RowBlock& block) const {
    Index begin = source_.k.rows;
    Index end = 0;
    for (Index r = 0; r < block.count; ++r) {
      const ColumnRange open = source_.mask.range(block.head, source_.row_at(block.first + r),
                                                  source_.q.rows, source_.k.rows);
      if (open.begin >= open.end) continue;
      begin = std::min(begin, open.begin);
      end = std::max(end, open.end);
    }
    block.col_end = end;
    block.col_begin = std::min(begin, end) / B::panel * B::panel;
  }

  Tile<T> make_tile(const RowBlock& block, Index col) {
    const Index cols = std::min(B::tile_cols, block.col_end - col);
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
    const Index depth = source_.q.cols;
    const Index groups = round_up(block.count, B::row_group) / B::row_group;
    const Index first = tile.col / B::panel;
    const Index last = round_up(tile.col + tile.cols, B::panel) / B::panel;
    for (Index p = first; p < last; ++p) {
      const T* panel = keys_.panel(block.head / source_.group, p);
      for (Index g = 0; g < groups; ++g) {
        const LeftRows<T> left{queries + g * B::row_group * depth, 1, B::row_group};
        T* out = tile.row(g * B::row_group) + (p * B::panel - tile.col);
        multiply_panel<T>(depth, left, panel, out, tile.stride, false);
      }
    }
  }

  const LogitSource<T>& source_;
  PackedKeys<T>& keys_;
  TileFinisher<T> finisher_;
  Fold fold_;
  Index block_rows_;
  Index blocks_;
  Buffer<T> queries_;
  Buffer<T> tile_;
};

}  // namespace detail

// Streams all logits of `source` through folds made by make_fold(), one a thread.
// Rows of a block: a multiple of Blocking<T>::row_group is best.
template <class T, class MakeFold>
void stream_tiles(const LogitSource<T>& source, const Run& run, MakeFold&& make_fold,
                  Index block_rows = Blocking<T>::tile_rows) {
  using Fold = decltype(make_fold());
  source.validate();
  // Few heads are packed at a time: memory stays O(one head), or 64 MiB if heads are small.
  const Index head_bytes = std::max<Index>(1, source.k.rows * source.k.cols * Index(sizeof(T)));
  const Index heads_at_once = std::max<Index>(1, (Index(64) << 20) / head_bytes);
  for (Index head = 0; head < source.k.count; head += heads_at_once) {
    const Index heads = std::min(heads_at_once, source.k.count - head);
    detail::PackedKeys<T> keys(source, head, heads, run);
    const Index blocks = (source.row_count() + block_rows - 1) / block_rows;
    const Index first_query_head = head * source.group;
    parallel_tasks(heads * source.group * blocks, run, [&] {
      return [&, worker = detail::BlockWorker<T, Fold>(source, keys, block_rows, make_fold())](
                 Index task) mutable { worker(first_query_head + task / blocks, task % blocks); };
    });
  }
}

}  // namespace headfit
