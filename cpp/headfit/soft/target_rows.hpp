// The rows of a dense target, whichever way it is given: attention is computed from its own
// queries and keys whenever a block of rows is asked for, a matrix is read where it lies.
#pragma once

#include "headfit/base/threads.hpp"
#include "headfit/logits/tile.hpp"
#include "headfit/soft/soft_target.hpp"

namespace headfit::soft {

// How far the sum of a row of a matrix may be from 1.
inline constexpr double sum_tolerance = 1e-4;

// Logits this far below the top of their row weigh nothing: what they weigh would be a number
// too small for fast arithmetic, here or in the next product.
template <class T>
inline constexpr T negligible = sizeof(T) == 4 ? T(69) : T(560);

// exp(s) / exp(shift), or 0 below a limit.
template <class T>
simd::Packet<T> exp_above(const simd::Packet<T>& s, const simd::Packet<T>& limit,
                          const simd::RowShift<T>& shift) {
  namespace ei = simd::ei;
  const auto e = simd::exp_shifted<T>(ei::pmax(s, limit), shift);
  return ei::pselect(ei::pcmp_lt(s, limit), simd::fill<T>(T(0)), e);
}

// A target, checked, and what is known of each row once and for all.
template <class T>
class TargetRows {
 public:
  TargetRows(const SoftTarget<T>& target, const Run& run);

  Index rows() const { return target_.rows(); }
  Index cols() const { return target_.cols(); }
  // Sum of -A log A over a row, in nats; 0 for a row that asks for nothing.
  double entropy(Index row) const { return entropy_[static_cast<std::size_t>(row)]; }
  // Whether the row may attend to anything, and how many do.
  bool asks(Index row) const {
    return log_sum_[static_cast<std::size_t>(row)] != -std::numeric_limits<double>::infinity();
  }
  Index asking_rows() const { return asking_; }

  // Reads blocks of rows; each thread has its own.
  class Reader {
   public:
    explicit Reader(const TargetRows& target);
    Reader(const Reader&) = delete;  // the finisher points at the source
    Reader& operator=(const Reader&) = delete;

    // The weights of a block whose places are those of `row_numbers`, for its columns; what
    // pads a row is zero. `out` has whole groups of rows and whole panels of columns.
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
  std::vector<double> log_sum_;  // of a row of logits, or log of the sum of a row of the matrix
  Index asking_ = 0;
  Buffer<T> panels_;  // the keys of attention, packed
};

}  // namespace headfit::soft
