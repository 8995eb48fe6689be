// Reads the rows of a dense target. If the target is the attention of queries and keys, it is
// computed again for every block of rows; a matrix is read as it is stored.
#pragma once

#include "headfit/base/threads.hpp"
#include "headfit/logits/tile.hpp"
#include "headfit/soft/soft_target.hpp"

namespace headfit::soft {

// How far the sum of a row of a target matrix may be from 1.
inline constexpr double sum_tolerance = 1e-4;

// Logits this far below the maximum of their row get weight zero. Their weights would be so small
// that they, or products with them, are subnormal numbers, with which arithmetic is slow.
template <class T>
inline constexpr T negligible = sizeof(T) == 4 ? T(69) : T(560);

// exp(s) / exp(shift), or 0 below a limit.
template <class T>
simd::Packet<T> exp_above(const simd::Packet<T>& s, const simd::Packet<T>& limit,
                          const simd::RowShift<T>& shift) {
  const auto e = simd::exp_shifted<T>(simd::pmax(s, limit), shift);
  return simd::pselect(simd::pcmp_lt(s, limit), simd::fill<T>(T(0)), e);
}

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
  bool asks(Index row) const {
    return log_sum_[static_cast<std::size_t>(row)] != -std::numeric_limits<double>::infinity();
  }
  Index asking_rows() const { return asking_; }
  // The logarithm of the share of a row that the target's sink takes; -inf without a sink.
  double log_sink(Index row) const {
    const double log_sum = log_sum_[static_cast<std::size_t>(row)];
    return target_.attention && asks(row) ? target_.attention->sink(0) - log_sum
                                          : -std::numeric_limits<double>::infinity();
  }

  // Reads blocks of rows. Each thread has a reader of its own.
  class Reader {
   public:
    explicit Reader(const TargetRows& target);
    Reader(const Reader&) = delete;  // finisher_ refers to source_
    Reader& operator=(const Reader&) = delete;

    // Writes the weights of a block for its columns; place i of the block is row row_numbers[i].
    // Rows are padded with zeros. `out` must have room for whole row groups and whole panels.
    void read(const RowBlock& block, std::span<const Index> row_numbers, T* out, Index stride);

   private:
    void multiply(const RowBlock& block, T* out, Index stride);
    void to_weights(const RowBlock& block, T* out, Index stride) const;
    void copy(const RowBlock& block, T* out, Index stride) const;

    const TargetRows& target_;
    LogitSource<T> source_;
    HeadRows<T> query_rows_;
    Checkpoints pace_;
    TileFinisher<T> finisher_;
    Buffer<T> queries_;
  };

 private:
  void measure_attention(const Run& run);
  void measure_matrix(const Run& run);
  template <class Stored>
  void measure_row(const MatrixView<Stored>& matrix, Index row);
  void pack_keys(const Run& run);

  SoftTarget<T> target_;
  std::vector<double> entropy_;
  std::vector<double> log_sum_;  // of exp(logits), or of a row of the matrix
  Index asking_ = 0;
  Buffer<T> panels_;  // the packed keys, if the target is attention
};

}  // namespace headfit::soft
