// Reads the best entries of rows from the stream of logits.
#include "headfit/attention/best_of_row.hpp"
#include "headfit/logits/stream.hpp"
#include "headfit/sparsify/matching.hpp"
#include "headfit/sparsify/renormalise.hpp"

namespace headfit {
namespace {

// The key of an entry is the logarithm of its share of the row: its logit minus the logarithm of
// the row's sum of exponentials. Below this key a share is zero in double.
constexpr double least_log_share = -700;

template <class T>
class ListFold {
 public:
  ListFold(std::span<const Index> rows, Index limit, const Columns& columns,
           std::vector<RowList>& lists)
      : rows_(rows), limit_(limit), columns_(columns), lists_(lists) {}

  void begin(const RowBlock& block) {
    state_.resize(std::max(state_.size(), static_cast<std::size_t>(block.count)));
    for (Index r = 0; r < block.count; ++r) {
      const RowList& list = list_of(block, r);
      state_[at(r)].best.start(limit_, list.last_score, list.last_col);
      state_[at(r)].sum = {};
    }
  }

  void tile(const RowBlock& block, const Tile<T>& tile) {
    const Index padded = tile.padded_cols();
    for (Index r = 0; r < tile.count; ++r) {
      State& state = state_[at(r)];
      const RowList& list = list_of(block, r);
      const bool is_first = list.last_col < 0;
      T* x = tile.row(r);
      if (is_first) {
        const T max = row_max(x, padded);
        if (max == -std::numeric_limits<T>::infinity()) continue;
        state.best.offer(x, tile.col, padded, [](const auto&) { return true; });
        state.sum.raise(max);
        state.sum.sum += exp_sum<T, Exponentials::discard>(x, padded, state.sum.shift);
      } else {
        const auto row = static_cast<Column>(row_of(block, r));
        state.best.offer(x, tile.col, padded, [&](const auto& s) {
          return columns_.would_take(s.col, {static_cast<double>(s.score) - list.norm, row});
        });
      }
    }
  }

  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      RowList& list = list_of(block, r);
      State& state = state_[at(r)];
      if (list.last_col < 0 && !state.sum.empty()) list.norm = state.sum.log_sum();
      state.best.finish(list, [&](double score) { return score - list.norm; }, least_log_share);
    }
  }

 private:
  struct State {
    BestOfRow<T> best;
    OnlineSum<T> sum;
  };

  static std::size_t at(Index r) { return static_cast<std::size_t>(r); }
  Index row_of(const RowBlock& block, Index r) const { return rows_[at(block.first + r)]; }
  RowList& list_of(const RowBlock& block, Index r) { return lists_[at(row_of(block, r))]; }

  std::span<const Index> rows_;
  Index limit_;
  const Columns& columns_;
  std::vector<RowList>& lists_;  // no two blocks share a row
  std::vector<State> state_;
};

template <class T>
class LogitRows : public RowReader {
 public:
  explicit LogitRows(const LogitSource<T>& source) : source_(source) {}
  Index rows() const override { return source_.q.rows; }
  Index cols() const override { return source_.k.rows; }
  double share(double key) const override { return std::exp(key); }

  void read(std::span<const Index> rows, Index limit, const Columns& columns,
            std::vector<RowList>& lists, const Run& run) const override {
    LogitSource<T> some = source_;
    some.rows = rows;
    stream_tiles(some, run, [&] { return ListFold<T>(rows, limit, columns, lists); });
  }

 private:
  LogitSource<T> source_;
};

}  // namespace

template <class T>
SparseRows sparsify_logits(const LogitSource<T>& source, const SparsifyOptions& options,
                           const Run& run) {
  if (source.q.count != 1 || source.rows) {
    throw InputError("Q and K must be matrices, one head, and all of its rows");
  }
  return renormalised(match(LogitRows<T>(source), options, run));
}

template SparseRows sparsify_logits(const LogitSource<float>&, const SparsifyOptions&, const Run&);
template SparseRows sparsify_logits(const LogitSource<double>&, const SparsifyOptions&, const Run&);

}  // namespace headfit
