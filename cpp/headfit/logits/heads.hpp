// Queries, keys and values as they are stored, and the one place where their rows are read. A row
// is converted to the type of the computation, and turned to its rotary position, when it is read;
// only keys that are packed (pack.hpp) are converted whole.
#pragma once

#include <variant>

#include "headfit/base/buffer.hpp"

namespace headfit {

// A pointer to the first number of an array that the caller owns.
using Stored =
    std::variant<const float*, const double*, const Eigen::half*, const Eigen::bfloat16*>;

template <class S>
inline constexpr bool has_16_bits = sizeof(S) == 2;

// Converts a stored number, or an array expression of stored numbers, to T. The conversion is exact
// if T is at least as wide. It goes through float for 16-bit types, which Eigen converts to float
// only.
template <class T, class S>
T as(S x) {
  if constexpr (has_16_bits<S>) {
    return static_cast<T>(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}
// Rotary positions: each pair of entries of row i is rotated by an angle. Row first + i of the
// table holds the cosines of these angles, followed by their sines.
template <class T>
struct Rotary {
  const T* table = nullptr;  // if null, nothing is rotated
  Index first = 0;
  bool halves = false;  // pairs are (p, p + d / 2) instead of (2 p, 2 p + 1)

  void turn(Index row, T* x, Index cols) const { rotate(row, x, cols, T(1)); }
  // Undoes it. It is also what turns a gradient by the turned numbers into one by x.
  void turn_back(Index row, T* x, Index cols) const { rotate(row, x, cols, T(-1)); }

 private:
  // A sign of -1 turns by the negative angles.
  void rotate(Index row, T* x, Index cols, T sign) const;
};

// A stack of row-major matrices, one for each head of each batch entry, whose numbers are read as
// T.
template <class T>
struct Heads {
  Stored data;
  Index count = 0;
  Index rows = 0;
  Index cols = 0;
  Index head_stride = 0;
  Index row_stride = 0;
  Rotary<T> rotary = {};

  // Whether rows can be read where they lie: without a conversion or rotation.
  bool is_plain() const { return std::holds_alternative<const T*>(data) && !rotary.table; }
  // A view of one head. Only for numbers that are stored as T.
  MatrixView<T> operator[](Index head) const {
    return MatrixView<T>(std::get<const T*>(data) + head * head_stride, rows, cols,
                         RowStride(row_stride));
  }
};

// Rows of the same length that lie somewhere in memory, `stride` entries apart.
template <class T>
struct RowsInMemory {
  const T* data;
  Index stride;
  const T* row(Index i) const { return data + i * stride; }
};

// A matrix as one head.
template <class T>
Heads<T> heads_of(const Matrix<T>& x) {
  return {x.data(), 1, x.rows(), x.cols(), x.size(), x.cols()};
}

template <class T>
using RowView = Eigen::Map<const Eigen::Matrix<T, 1, Eigen::Dynamic>>;

// Reads rows of heads. Each thread has a reader of its own.
template <class T>
class HeadRows {
 public:
  explicit HeadRows(const Heads<T>& heads) : heads_(heads) {}

  const Heads<T>& heads() const { return heads_; }

  // Row i of a head, valid until the next call. It is a view of the stored row where nothing has to
  // be converted or rotated.
  RowView<T> row(Index head, Index i) {
    const Index at = head * heads_.head_stride + i * heads_.row_stride;
    const T* const* plain = std::get_if<const T*>(&heads_.data);
    if (plain && !heads_.rotary.table) return {*plain + at, heads_.cols};
    return converted(at, i);
  }

 private:
  RowView<T> converted(Index at, Index i);

  Heads<T> heads_;
  Buffer<T> row_;
};

}  // namespace headfit
