// Reads the best entries of rows from the stream of logits, or from a given matrix, dense or
// compressed.
#include "headfit/sparsify/sparsify.hpp"

#include <cmath>
#include <numeric>
#include <sstream>

#include "headfit/logits/stream.hpp"
#include "headfit/sparsify/matching.hpp"

namespace headfit {
namespace {

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
    for (Index r = 0; r < tile.count; ++r) {
      offer(block, r, tile.row(r), tile.padded_cols(), [&](Index c) { return tile.col + c; });
    }
  }

  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    offer(block, r, entries.data, entries.padded(), [&](Index c) { return entries.column(c); });
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

  // Takes a part of a row; x[c] stands in column place(c).
  template <class Place>
  void offer(const RowBlock& block, Index r, T* x, Index padded, const Place& place) {
    State& state = state_[at(r)];
    const RowList& list = list_of(block, r);
    if (list.last_col < 0) {
      const T max = row_max(x, padded);
      if (max == -std::numeric_limits<T>::infinity()) return;
      state.best.offer(x, padded, place, [](const auto&) { return true; });
      state.sum.raise(max);
      state.sum.sum += exp_sum<T, Exponentials::discard>(x, padded, state.sum.shift);
    } else {
      const auto row = static_cast<Column>(row_of(block, r));
      state.best.offer(x, padded, place, [&](const auto& s) {
        return columns_.would_take(s.col, {static_cast<double>(s.score) - list.norm, row});
      });
    }
  }

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

template <class T>
struct Dense {
  HeadRows<T> matrix;
  Index rows() const { return matrix.heads().rows; }
  Index cols() const { return matrix.heads().cols; }

  template <class F>
  void for_each(Index i, F&& f) {
    const RowView<T> row = matrix.row(0, i);
    for (Index j = 0; j < row.size(); ++j) f(j, static_cast<double>(row[j]));
  }
};

struct Compressed {
  const CompressedRows& matrix;
  Index rows() const { return matrix.rows; }
  Index cols() const { return matrix.cols; }

  template <class F>
  void for_each(Index row, F&& f) const {
    for (Offset p = matrix.offsets[row]; p < matrix.offsets[row + 1]; ++p) {
      f(static_cast<Index>(matrix.columns[p]), matrix.weights[p]);
    }
  }
};

// The key of an entry is its share of the row. The reader of entries is copied for each thread; the
// matrix is not.
template <class Entries>
class MatrixRows : public RowReader {
 public:
  MatrixRows(const Entries& entries, const Mask& mask) : entries_(entries), mask_(mask) {}
  Index rows() const override { return entries_.rows(); }
  Index cols() const override { return entries_.cols(); }
  double share(double key) const override { return key; }

  void read(std::span<const Index> rows, Index limit, const Columns& columns,
            std::vector<RowList>& lists, const Run& run) const override {
    parallel_tasks(static_cast<Index>(rows.size()), run, [&] {
      return [&, entries = entries_, best = BestOfRow<double>()](Index task) mutable {
        const Index row = rows[static_cast<std::size_t>(task)];
        read_row(entries, row, limit, columns, lists[static_cast<std::size_t>(row)], best);
      };
    });
  }

 private:
  void read_row(Entries& entries, Index row, Index limit, const Columns& columns, RowList& list,
                BestOfRow<double>& best) const {
    best.start(limit, list.last_score, list.last_col);
    const bool is_first = list.last_col < 0;
    if (is_first) list.norm = checked_sum(entries, row);
    entries.for_each(row, [&](Index col, double weight) {
      if (!(weight > 0) || !allowed(row, col)) return;
      best.offer_one({weight, static_cast<Column>(col)}, [&](const auto& s) {
        return is_first ||
               columns.would_take(s.col, {s.score / list.norm, static_cast<Column>(row)});
      });
    });
    best.finish(list, [&](double weight) { return weight / list.norm; },
                std::numeric_limits<double>::min());
  }

  double checked_sum(Entries& entries, Index row) const {
    CarefulSum sum;
    entries.for_each(row, [&](Index col, double weight) {
      if (!allowed(row, col)) return;
      if (!(weight >= 0 && weight <= std::numeric_limits<double>::max())) {
        std::ostringstream text;
        text << "M must hold finite weights of at least 0; got " << weight << " at row " << row
             << ", column " << col;
        throw InputError(text.str());
      }
      sum.add(weight);
    });
    if (!std::isfinite(sum.value())) {
      throw InputError("M must have finite sums of rows; that of row ", row, " is not");
    }
    return sum.value();
  }

  bool allowed(Index row, Index col) const { return mask_.allows(0, row, col, rows(), cols()); }

  Entries entries_;
  const Mask& mask_;
};

// Weights are shares of their whole rows when this is called. Scales those of each row to sum to 1,
// and records the share that was dropped. It equals the total variation distance between the row
// before and after: entries lose that much in all, and those that are kept gain as much.
SparseRows renormalised(SparseRows rows) {
  const std::size_t n = rows.offsets.size() - 1;
  rows.dropped.assign(n, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    double* begin = rows.weights.data() + rows.offsets[i];
    double* end = rows.weights.data() + rows.offsets[i + 1];
    if (begin == end) continue;
    const double kept = std::accumulate(begin, end, 0.0);
    rows.dropped[i] = std::max(0.0, 1 - kept);
    std::for_each(begin, end, [&](double& w) { w /= kept; });
  }
  return rows;
}

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

template <class T>
SparseRows sparsify_matrix(const Heads<T>& matrix, const Mask& mask, const SparsifyOptions& options,
                           const Run& run) {
  return renormalised(match(MatrixRows<Dense<T>>({HeadRows<T>(matrix)}, mask), options, run));
}

SparseRows sparsify_compressed(const CompressedRows& matrix, const Mask& mask,
                               const SparsifyOptions& options, const Run& run) {
  matrix.check_structure();
  return renormalised(match(MatrixRows<Compressed>({matrix}, mask), options, run));
}

template SparseRows sparsify_matrix(const Heads<float>&, const Mask&, const SparsifyOptions&,
                                    const Run&);
template SparseRows sparsify_matrix(const Heads<double>&, const Mask&, const SparsifyOptions&,
                                    const Run&);

}  // namespace headfit
