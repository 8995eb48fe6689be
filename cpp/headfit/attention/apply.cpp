// Attention times values without the attention matrix: a running softmax of each row, and its
// product with the values seen so far (Milakov and Gimelshein 2018; Dao et al. 2022).
#include <algorithm>
#include <limits>

#include "headfit/attention/attention.hpp"
#include "headfit/attention/softmax_row.hpp"
#include "headfit/logits/stream.hpp"

namespace headfit {
namespace {

// The values of a few heads, packed into panels for the microkernel. Its inner dimension runs over
// the keys here. Where there are entries and no tiles, whole panels are read where they lie.
template <class T>
class PackedValues {
 public:
  PackedValues(const Heads<T>& v, const LogitSource<T>& source)
      : v_(v),
        source_(source),
        rows_(round_up(v.rows, Blocking<T>::tile_cols)),
        panels_(round_up(v.cols, Blocking<T>::panel) / Blocking<T>::panel),
        halvings_(static_cast<std::size_t>(v.count), 0) {}

  Index cols() const { return panels_ * Blocking<T>::panel; }

  void pack(Index first_head, Index heads, const KeyLayouts& layouts, const Run& run) {
    first_ = first_head;
    constexpr Index few = 1024;  // rows of a task
    const Index tasks = (rows_ + few - 1) / few;
    std::vector<T> largest(static_cast<std::size_t>(heads * tasks), T(0));
    // For all heads: work(reader, head, first row, end of the rows, largest |value| of the task).
    const auto for_rows = [&](const auto& work) {
      parallel_tasks(heads * tasks, run, [&] {
        return [&, values = HeadRows<T>(v_)](Index task) mutable {
          const Index first = task % tasks * few;
          work(values, first_ + task / tasks, first, std::min(first + few, rows_),
               largest[static_cast<std::size_t>(task)]);
        };
      });
    };
    for_rows([&](HeadRows<T>& values, Index head, Index first, Index end, T& most) {
      const Index valid = std::min(end, valid_keys(source_, head));
      for (Index i = first; i < valid; ++i) checked_row("V", values, head, i, most);
    });
    for (Index h = 0; h < heads; ++h) {
      const auto of_head = largest.begin() + h * tasks;
      set_halvings(first_ + h, tasks > 0 ? *std::max_element(of_head, of_head + tasks) : T(0));
    }
    const bool are_whole =
        v_.cols == cols() && !source_.mask.key_lengths && source_.is_best_in_place(v_);
    const bool are_as_given =
        std::all_of(halvings_.begin(), halvings_.end(), [](int h) { return h == 0; });
    are_in_place_ = are_whole && are_as_given && !layouts.panels;
    if (are_in_place_) return;
    data_.ensure(heads * panels_ * rows_ * Blocking<T>::panel);
    for_rows([&](HeadRows<T>& values, Index head, Index first, Index end, T&) {
      pack_rows(values, head, first, end);
    });
  }

  // How often the values of a head were halved, so that sums over them cannot overflow.
  int halvings(Index head) const { return halvings_[static_cast<std::size_t>(head)]; }

  Index panels() const { return panels_; }
  // The rows of a panel.
  RowsInMemory<T> rows(Index head, Index panel) const {
    constexpr Index width = Blocking<T>::panel;
    if (are_in_place_) return {v_[head].data() + panel * width, v_.row_stride};
    return {at(head, panel, 0), width};
  }
  const T* at(Index head, Index panel, Index row) const {
    return data_.data() + (((head - first_) * panels_ + panel) * rows_ + row) * Blocking<T>::panel;
  }

 private:
  // A weighted sum of values may overflow where their weighted average does not.
  void set_halvings(Index head, T largest) {
    constexpr double limit = static_cast<double>(std::numeric_limits<T>::max()) / 4;
    const double rows = static_cast<double>(std::max<Index>(v_.rows, 1));
    if (static_cast<double>(largest) <= limit / rows) return;
    halvings_[static_cast<std::size_t>(head)] = 2 + static_cast<int>(std::ceil(std::log2(rows)));
  }

  // Rows of padding are zeros.
  void pack_rows(HeadRows<T>& values, Index head, Index first, Index end) {
    const T factor = static_cast<T>(std::ldexp(1.0, -halvings(head)));
    constexpr Index width = Blocking<T>::panel;
    T* out = data_.data() + (head - first_) * panels_ * rows_ * width;
    const Index valid = std::clamp(valid_keys(source_, head), first, end);
    for (Index i = first; i < valid; ++i) {
      const RowView<T> row = values.row(head, i);
      for (Index p = 0; p < panels_; ++p) {
        T* to = out + (p * rows_ + i) * width;
        const Index count = std::min(width, v_.cols - p * width);
        for (Index c = 0; c < count; ++c) to[c] = row[p * width + c] * factor;
        std::fill(to + count, to + width, T(0));
      }
    }
    for (Index p = 0; p < panels_; ++p) {
      std::fill(out + (p * rows_ + valid) * width, out + (p * rows_ + end) * width, T(0));
    }
  }

  const Heads<T>& v_;
  const LogitSource<T>& source_;
  Index first_ = 0;  // the first packed head
  Index rows_;
  Index panels_;
  std::vector<int> halvings_;
  bool are_in_place_ = false;
  Buffer<T> data_;
};

template <class T>
class ApplyFold {
 public:
  ApplyFold(const LogitSource<T>& source, const PackedValues<T>& values, Index cols,
            const OutHeads<T>& out)
      : source_(source), values_(values), group_(source.group), cols_(cols), out_(out) {}

  void begin(const RowBlock& block) {
    rows_.assign(static_cast<std::size_t>(round_up(block.count, B::row_group)), OnlineSum<T>{});
    const Index size = static_cast<Index>(rows_.size()) * width();
    std::fill_n(sums_.ensure(size), size, T(0));
  }

  void tile(const RowBlock& block, const Tile<T>& tile) {
    const Index padded = tile.padded_cols();
    for (Index r = 0; r < tile.count; ++r) {
      OnlineSum<T>& row = rows_[static_cast<std::size_t>(r)];
      T* x = tile.row(r);
      const double factor = row.raise(row_max(x, padded));
      if (row.empty()) {
        std::fill(x, x + padded, T(0));
        continue;
      }
      if (factor != 1) {
        Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>(sum(r), width()) *= static_cast<T>(factor);
      }
      row.sum += exp_sum<T, Exponentials::keep>(x, padded, row.shift);
    }
    accumulate(block, tile);
  }

  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    OnlineSum<T>& row = rows_[static_cast<std::size_t>(r)];
    row.raise(row_max(entries.data, entries.padded()));
    if (row.empty()) return;
    row.sum = exp_sum<T, Exponentials::keep>(entries.data, entries.padded(), row.shift);
    checkpoints_.after(entries.count() * width());
    for (Index p = 0; p < values_.panels(); ++p) {
      add_weighted_rows<2, 2>(entries.data, values_.rows(block.head / group_, p), entries.columns,
                              sum(r) + p * B::panel);
    }
  }

  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      OnlineSum<T>& row = rows_[static_cast<std::size_t>(r)];
      const double factor = row.empty() ? 0 : row.add_sink(source_.sink(block.head));
      const T inverse = row.empty() ? T(0) : static_cast<T>(factor / row.sum);
      T* to = out_.row(block.head, block.first + r);
      const T doubling = static_cast<T>(std::ldexp(1.0, values_.halvings(block.head / group_)));
      // An average of values near the largest number may round to beyond it.
      constexpr T most = std::numeric_limits<T>::max();
      for (Index c = 0; c < cols_; ++c) {
        to[c] = std::clamp(sum(r)[c] * inverse * doubling, -most, most);
      }
    }
  }

 private:
  using B = Blocking<T>;
  Index width() const { return values_.panels() * B::panel; }
  T* sum(Index r) { return sums_.data() + r * width(); }

  void accumulate(const RowBlock& block, const Tile<T>& tile) {
    // Rows that pad the last row group hold products with zero queries: finite, and not used.
    const Index head = block.head / group_;
    const Index groups = round_up(block.count, B::row_group) / B::row_group;
    const RowGroup<T> weights{tile.data, tile.stride};
    for (Index p = 0; p < values_.panels(); ++p) {
      checkpoints_.after(groups * B::row_group * B::panel * tile.cols);
      multiply_panel<Product::added>(groups, tile.cols, weights, values_.at(head, p, tile.col),
                                     sum(0) + p * B::panel, width());
    }
  }

  const LogitSource<T>& source_;
  const PackedValues<T>& values_;
  Index group_;
  Index cols_;
  OutHeads<T> out_;
  Checkpoints checkpoints_;
  std::vector<OnlineSum<T>> rows_;
  Buffer<T> sums_;
};

}  // namespace

template <class T>
void attention_apply(const LogitSource<T>& source, const Heads<T>& v, const OutHeads<T>& out,
                     const Run& run) {
  source.validate();
  if (v.count != source.k.count || v.rows != source.k.rows) {
    throw InputError("V must have the heads and rows of K, ", source.k.count, " and ",
                     source.k.rows, "; got ", v.count, " and ", v.rows);
  }
  PackedValues<T> values(v, source);
  stream_tiles(source, run, [&] { return ApplyFold<T>(source, values, v.cols, out); }, values);
}

template void attention_apply(const LogitSource<float>&, const Heads<float>&,
                              const OutHeads<float>&, const Run&);
template void attention_apply(const LogitSource<double>&, const Heads<double>&,
                              const OutHeads<double>&, const Run&);

}  // namespace headfit
