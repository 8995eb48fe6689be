// The k largest weights of every row: a short list of the best logits, and the sum of exponentials
// of the whole row, which the weights are divided by.
#include <algorithm>
#include <bit>

#include "headfit/attention/attention.hpp"
#include "headfit/attention/short_lists.hpp"
#include "headfit/attention/softmax_row.hpp"
#include "headfit/base/best_few.hpp"

namespace headfit {
namespace {

template <class T>
class TopkFold {
  // In float, sums of lanes are added up in double. In double nothing wider is at hand, and sums
  // are compensated instead.
  static constexpr bool sums_in_lanes = sizeof(T) == 4;

 public:
  TopkFold(const LogitSource<T>& source, Index k, const OutHeads<Offset>& columns,
           const OutHeads<T>& weights)
      : source_(source), k_(k), columns_(columns), weights_(weights) {}

  Index block_rows(const LogitSource<T>& source) const { return list_rows(source, k_); }

  void begin(const RowBlock& block) {
    constexpr T infinity = std::numeric_limits<T>::infinity();
    const Index padded = round_up(block.count, B::row_group);
    std::fill_n(limits_.ensure(padded), padded, infinity);
    std::fill_n(limits_.data(), block.count, -infinity);
    if constexpr (sums_in_lanes) {
      std::fill_n(lanes_.ensure(padded * B::lanes), padded * B::lanes, T(0));
      shifts_.assign(static_cast<std::size_t>(padded), {});
    }
    rows_.resize(static_cast<std::size_t>(block.count));
    for (Row& row : rows_) {
      row.best.clear(k_);
      row.sum = {};
      row.settled = {};
    }
  }

  // In float, this does the same additions in the same order as the stream does where it has whole
  // panels of bare products, so that the mask does not change the bits of a sum.
  void tile(const RowBlock& block, const Tile<T>& tile) {
    const Index padded = tile.padded_cols();
    for (Index r = 0; r < tile.count; ++r) {
      T* x = tile.row(r);
      const T max = row_max(x, padded);
      const bool is_hidden = max == -std::numeric_limits<T>::infinity();
      if (!sums_in_lanes && is_hidden) continue;
      const bool has_hits = max > limits_.data()[r];
      for (Index c = 0; c < padded;) {
        const Index room = has_hits ? B::panel : settled_cols - (tile.col + c) % settled_cols;
        const Index count = std::min(room, padded - c);
        if (has_hits) find_hits(block, r, tile.col + c, x + c, count);
        if constexpr (sums_in_lanes) {
          if (!is_hidden) add_exponentials(r, x + c, count);
          if ((tile.col + c + count) % settled_cols == 0) settle_row(r);
        }
        c += count;
      }
      if constexpr (!sums_in_lanes) {
        OnlineSum<T>& sum = rows_[static_cast<std::size_t>(r)].sum;
        sum.sum += exp_sum<T, Exponentials::discard>(x, padded, sum.shift);
      }
    }
  }

  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    OnlineSum<T>& sum = rows_[static_cast<std::size_t>(r)].sum;
    T* x = entries.data;
    sum.raise(row_max(x, entries.padded()));
    if (sum.empty()) return;
    for_hits(entries, [&] { return limits_.data()[r]; },
             [&](Index c) { hits(block, r, entries.column(c), x + c, 1); });
    sum.sum = exp_sum<T, Exponentials::discard>(x, entries.padded(), sum.shift);
  }

  const T* limits(const RowBlock&) const requires(sums_in_lanes) { return limits_.data(); }
  ExpSums<T> sums(const RowBlock&) requires(sums_in_lanes) {
    return {shifts_.data(), lanes_.data()};
  }

  // Of equal logits the one with the lower column is kept, since columns ascend.
  void hits(const RowBlock&, Index r, Index col, const T* logits, std::uint32_t bits) {
    Row& row = rows_[static_cast<std::size_t>(r)];
    T& limit = limits_.data()[r];
    T most = row.sum.max;
    for (; bits; bits &= bits - 1) {
      const int b = std::countr_zero(bits);
      if (!(logits[b] > limit)) continue;
      most = std::max(most, logits[b]);
      row.best.push({logits[b], col + b});
      if (row.best.full()) limit = row.best.bar().score;
    }
    if (most > row.sum.max) {
      sum_up(r);
      row.sum.raise(most);
      if constexpr (sums_in_lanes) shifts_[static_cast<std::size_t>(r)] = row.sum.shift;
    }
  }

  void settle(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) settle_row(r);
  }

  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      sum_up(r);
      Row& row = rows_[static_cast<std::size_t>(r)];
      if (!row.sum.empty()) row.sum.add_sink(source_.sink(block.head));
      const auto& best = row.best.sorted();
      const Index count = static_cast<Index>(best.size());
      const T* terms = exponentials(best, row.sum.shift);
      Offset* cols = columns_.row(block.head, block.first + r);
      T* weights = weights_.row(block.head, block.first + r);
      for (Index i = 0; i < count; ++i) {
        cols[i] = best[static_cast<std::size_t>(i)].col;
        weights[i] = static_cast<T>(static_cast<double>(terms[i]) / row.sum.sum);
      }
      std::fill(cols + count, cols + k_, Offset(-1));
      std::fill(weights + count, weights + k_, T(0));
    }
  }

 private:
  using B = Blocking<T>;
  using Ranked = Scored<T, Index>;
  static constexpr Index settled_cols = B::sum_panels * B::panel;

  struct Row {
    BestFew<Ranked> best;
    OnlineSum<T> sum;
    LaneSum<T> settled;  // what was added since the shift of the sum last moved
  };

  void find_hits(const RowBlock& block, Index r, Index col, const T* x, Index count) {
    const auto limit = simd::fill<T>(limits_.data()[r]);
    std::uint32_t bits = simd::bits_above<T>(simd::load(x), limit);
    if (count > B::lanes) bits |= simd::bits_above<T>(simd::load(x + B::lanes), limit) << B::lanes;
    if (bits) hits(block, r, col, x, bits);
  }

  void add_exponentials(Index r, const T* x, Index count) {
    const simd::ShiftedExp<T> shifted_exp(shifts_[static_cast<std::size_t>(r)]);
    auto sum = simd::load(lanes_.data() + r * B::lanes);
    for (Index c = 0; c < count; c += B::panel) {
      auto terms = shifted_exp(simd::load(x + c));
      if (c + B::lanes < count) {
        terms = simd::padd(terms, shifted_exp(simd::load(x + c + B::lanes)));
      }
      sum = simd::padd(sum, terms);
    }
    simd::store(lanes_.data() + r * B::lanes, sum);
  }

  void settle_row(Index r) {
    T* lanes = lanes_.data() + r * B::lanes;
    rows_[static_cast<std::size_t>(r)].settled.add(simd::load(lanes));
    simd::store(lanes, simd::fill<T>(T(0)));
  }

  void sum_up(Index r) {
    if constexpr (sums_in_lanes) {
      settle_row(r);
      Row& row = rows_[static_cast<std::size_t>(r)];
      row.sum.sum += row.settled.value();
      row.settled = {};
    }
  }

  // exp(score - shift) for every entry of a list.
  const T* exponentials(const std::vector<Ranked>& best, const simd::RowShift<T>& shift) {
    const auto count = static_cast<Index>(best.size());
    T* terms = terms_.ensure(round_up(count, B::lanes));
    for (Index i = 0; i < count; ++i) terms[i] = best[static_cast<std::size_t>(i)].score;
    std::fill(terms + count, terms + round_up(count, B::lanes), T(0));
    const simd::ShiftedExp<T> shifted_exp(shift);
    for (Index i = 0; i < count; i += B::lanes) {
      simd::store(terms + i, shifted_exp(simd::load(terms + i)));
    }
    return terms;
  }

  const LogitSource<T>& source_;
  Index k_;
  OutHeads<Offset> columns_;
  OutHeads<T> weights_;
  std::vector<Row> rows_;
  Buffer<T> limits_;
  std::vector<simd::RowShift<T>> shifts_;
  Buffer<T> lanes_;
  Buffer<T> terms_;  // exponentials of the list that is written
};

}  // namespace

template <class T>
void attention_topk(const LogitSource<T>& source, Index k, const OutHeads<Offset>& columns,
                    const OutHeads<T>& weights, const Run& run) {
  check_list_length(k, source.k.rows);
  stream_tiles(source, run, [&] { return TopkFold<T>(source, k, columns, weights); });
}

template void attention_topk(const LogitSource<float>&, Index, const OutHeads<Offset>&,
                             const OutHeads<float>&, const Run&);
template void attention_topk(const LogitSource<double>&, Index, const OutHeads<Offset>&,
                             const OutHeads<double>&, const Run&);

}  // namespace headfit
