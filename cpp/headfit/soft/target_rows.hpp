// A dense target, the attention of given queries and keys or a given matrix, and how its rows are
// read: attention is computed again for every block of rows; a matrix is read as it is stored.
#pragma once

#include <optional>
#include <variant>

#include "headfit/logits/stream.hpp"

namespace headfit {

// The matrix is read as it is stored, whatever the dtype of the computation is.
using StoredMatrix = std::variant<MatrixView<float>, MatrixView<double>, MatrixView<Eigen::half>,
                                  MatrixView<Eigen::bfloat16>>;

// Either `attention` or `matrix` is set. The rows of a matrix sum to 1, or are zero if the mask
// allows nothing.
template <class T>
struct SoftTarget {
  std::optional<LogitSource<T>> attention;  // one head, all rows
  std::optional<StoredMatrix> matrix;
  Mask mask;  // of the matrix; attention has a mask of its own

  Index rows() const {
    return attention ? attention->q.rows
                     : std::visit([](const auto& m) { return m.rows(); }, *matrix);
  }
  Index cols() const {
    return attention ? attention->k.rows
                     : std::visit([](const auto& m) { return m.cols(); }, *matrix);
  }
};

namespace soft {

// How far the sum of a row of a target matrix may be from 1.
inline constexpr double sum_tolerance = 1e-4;

// A target that was checked, with what is computed once for each row.
template <class T>
class TargetRows {
 public:
  TargetRows(const SoftTarget<T>& target, const Run& run);

  Index rows() const { return target_.rows(); }
  Index cols() const { return target_.cols(); }
  // The entropy of a row, the sum of -A log A, in nats; 0 for a row of zeros.
  double entropy(Index row) const { return entropy_[static_cast<std::size_t>(row)]; }
  // Whether the row attends to anything, and how many rows do.
  bool attends(Index row) const {
    return log_sum_[static_cast<std::size_t>(row)] != -std::numeric_limits<double>::infinity();
  }
  Index attending_rows() const { return attending_; }
  // The logarithm of the share of a row that the target's sink takes; -inf without a sink.
  double log_sink(Index row) const {
    const double log_sum = log_sum_[static_cast<std::size_t>(row)];
    return target_.attention && attends(row) ? target_.attention->sink(0) - log_sum
                                             : -std::numeric_limits<double>::infinity();
  }

  // The columns outside which a row of the target is zero.
  ColumnRange columns(Index row) const;
  // Whether the target has nothing outside the entries of a sparse mask.
  bool is_within(const Mask& mask) const;
  // Packs the keys of a target that is attention. Readers of whole blocks need them in panels, and
  // those of single entries in rows.
  void pack(const KeyLayouts& layouts, const Run& run);

  // Reads blocks of rows, or single entries. Each thread has a reader of its own, made after the keys
  // are packed.
  class Reader {
   public:
    explicit Reader(const TargetRows& target);
    Reader(const Reader&) = delete;  // logits_ refers to source_
    Reader& operator=(const Reader&) = delete;

    // Writes the weights of a block for its columns; place i of the block is row row_numbers[i].
    // Rows are padded with zeros. `out` must have room for whole row groups and whole panels.
    void read(const RowBlock& block, std::span<const Index> row_numbers, T* out, Index stride);

    // Returns the weights of a row in ascending columns. They are valid until the next call, and may be
    // overwritten.
    T* read(Index row, std::span<const Column> columns);

   private:
    // Turns the logits of a row into weights.
    void to_weights(Index row, T* x, Index padded) const;
    // Copies the weights of a row of a matrix in the columns place(0), place(1) ...
    template <class Place>
    void copy(Index row, Index count, const Place& place, T* to) const;

    const TargetRows& target_;
    LogitSource<T> source_;
    std::optional<LogitReader<T>> logits_;  // if the target is attention
    Buffer<T> weights_;  // of single entries of a matrix
  };

 private:
  void measure_attention(const Run& run);
  void measure_matrix(const Run& run);
  template <class Stored>
  void measure_row(const MatrixView<Stored>& matrix, Index row);

  SoftTarget<T> target_;
  std::vector<double> entropy_;
  std::vector<double> log_sum_;  // of exp(logits), or of a row of the matrix
  Index attending_ = 0;
  std::optional<PackedKeys<T>> keys_;  // if the target is attention
};

}  // namespace soft
}  // namespace headfit
