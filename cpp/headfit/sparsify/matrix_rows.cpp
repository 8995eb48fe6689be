// Reads the best entries of rows from a given matrix, dense or compressed.
#include <sstream>
#include <string>

#include "headfit/attention/best_of_row.hpp"
#include "headfit/sparsify/matching.hpp"
#include "headfit/sparsify/renormalise.hpp"

namespace headfit {
namespace {

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
    return sum.value();
  }

  bool allowed(Index row, Index col) const { return mask_.allows(0, row, col, rows(), cols()); }

  Entries entries_;
  const Mask& mask_;
};

// Offsets and columns are checked before anything is read through them.
void check_structure(const CompressedRows& m) {
  if (m.rows < 0 || !m.offsets || m.offsets[0] != 0) {
    throw InputError("M must have row offsets, one more than rows, that start at 0");
  }
  for (Index i = 0; i < m.rows; ++i) {
    if (m.offsets[i + 1] < m.offsets[i]) {
      throw InputError("M has decreasing row offsets at row " + std::to_string(i));
    }
  }
  for (Index i = 0; i < m.rows; ++i) {
    for (Offset p = m.offsets[i]; p < m.offsets[i + 1]; ++p) {
      if (m.columns[p] < 0 || m.columns[p] >= m.cols) {
        throw InputError("M has column " + std::to_string(m.columns[p]) + " in row " +
                         std::to_string(i) + "; expected 0 ... " + std::to_string(m.cols - 1));
      }
    }
  }
}

}  // namespace

template <class T>
SparseRows sparsify_matrix(const Heads<T>& matrix, const Mask& mask, const SparsifyOptions& options,
                           const Run& run) {
  return renormalised(match(MatrixRows<Dense<T>>({HeadRows<T>(matrix)}, mask), options, run));
}

SparseRows sparsify_compressed(const CompressedRows& matrix, const Mask& mask,
                               const SparsifyOptions& options, const Run& run) {
  check_structure(matrix);
  return renormalised(match(MatrixRows<Compressed>({matrix}, mask), options, run));
}

template SparseRows sparsify_matrix(const Heads<float>&, const Mask&, const SparsifyOptions&,
                                    const Run&);
template SparseRows sparsify_matrix(const Heads<double>&, const Mask&, const SparsifyOptions&,
                                    const Run&);

}  // namespace headfit
