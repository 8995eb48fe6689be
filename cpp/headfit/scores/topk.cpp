// Top-k of every row: a small heap of the best logits, and the row's sum of
// exponentials, so that the weights are those of the whole softmax.
#include <algorithm>
#include <bit>

#include "headfit/scores/attention.hpp"
#include "headfit/scores/softmax_row.hpp"
#include "headfit/scores/stream.hpp"

namespace headfit {
namespace {

template <class T>
struct Candidate {
  T logit;
  Index col;
};

// Larger logits first, then lower columns.
template <class T>
bool better(const Candidate<T>& a, const Candidate<T>& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.col < b.col);
}

template <class T>
class TopkFold {
 public:
  TopkFold(Index k, const OutHeads<Offset>& columns, const OutHeads<T>& weights)
      : k_(k), columns_(columns), weights_(weights) {}

  void begin(const RowBlock& block) {
    rows_.resize(static_cast<std::size_t>(block.count));
    for (Row& row : rows_) {
      row.best.clear();
      row.best.reserve(static_cast<std::size_t>(k_));
      row.sum = {};
    }
  }

  void tile(const RowBlock&, const Tile<T>& tile) {
    const Index padded = tile.padded_cols();
    for (Index r = 0; r < tile.count; ++r) {
      Row& row = rows_[static_cast<std::size_t>(r)];
      T* x = tile.row(r);
      const T max = row_max(x, padded);
      if (max == -std::numeric_limits<T>::infinity()) continue;
      if (max > limit(row)) collect(row, x, tile.col, padded);
      row.sum.raise(max);
      row.sum.sum += exp_sum<T, Exponentials::discard>(x, padded, row.sum.shift);
    }
  }

  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      Row& row = rows_[static_cast<std::size_t>(r)];
      std::sort(row.best.begin(), row.best.end(), better<T>);
      Offset* cols = columns_.row(block.head, block.first + r);
      T* weights = weights_.row(block.head, block.first + r);
      for (Index i = 0; i < k_; ++i) {
        const bool present = i < static_cast<Index>(row.best.size());
        const Candidate<T> c = present ? row.best[static_cast<std::size_t>(i)] : Candidate<T>{0, -1};
        cols[i] = c.col;
        weights[i] = present ? weight(row, c.logit) : T(0);
      }
    }
  }

 private:
  struct Row {
    std::vector<Candidate<T>> best;  // a heap whose front is the worst kept
    OnlineSum<T> sum;
  };

  bool full(const Row& row) const { return static_cast<Index>(row.best.size()) == k_; }

  // What must be exceeded: of equal logits the lower column stays.
  T limit(const Row& row) const {
    return full(row) ? row.best.front().logit : -std::numeric_limits<T>::infinity();
  }

  void collect(Row& row, const T* x, Index col, Index padded) const {
    for (Index c = 0; c < padded; c += simd::lanes<T>) {
      unsigned bits = simd::bits_above<T>(simd::load(x + c), simd::fill<T>(limit(row)));
      for (; bits; bits &= bits - 1) {
        const Index at = c + std::countr_zero(bits);
        if (x[at] > limit(row)) push(row, {x[at], col + at});
      }
    }
  }

  void push(Row& row, const Candidate<T>& c) const {
    if (full(row)) {
      std::pop_heap(row.best.begin(), row.best.end(), better<T>);
      row.best.back() = c;
    } else {
      row.best.push_back(c);
    }
    std::push_heap(row.best.begin(), row.best.end(), better<T>);
  }

  static T weight(const Row& row, T logit) {
    return static_cast<T>(exp_of(logit, row.sum.shift) / row.sum.sum);
  }

  Index k_;
  OutHeads<Offset> columns_;
  OutHeads<T> weights_;
  std::vector<Row> rows_;
};

}  // namespace

template <class T>
void attention_topk(const LogitSource<T>& source, Index k, const OutHeads<Offset>& columns,
                    const OutHeads<T>& weights, const Run& run) {
  if (k < 1 || k > source.k.rows) {
    throw InputError("k must lie in 1 ... " + std::to_string(source.k.rows) +
                     ", the number of keys; got " + std::to_string(k));
  }
  stream_tiles(source, run, [&] { return TopkFold<T>(k, columns, weights); });
}

template void attention_topk(const LogitSource<float>&, Index, const OutHeads<Offset>&,
                             const OutHeads<float>&, const Run&);
template void attention_topk(const LogitSource<double>&, Index, const OutHeads<Offset>&,
                             const OutHeads<double>&, const Run&);

}  // namespace headfit
