// Queries, keys and values as they are stored, and the one place where their rows are read:
// widened, and turned to their positions, a row at a time. No whole array is ever converted.
#pragma once

#include <variant>

#include "headfit/base/buffer.hpp"

namespace headfit {

// The first number of an array that somebody else owns.
using Stored =
    std::variant<const float*, const double*, const Eigen::half*, const Eigen::bfloat16*>;

template <class S>
inline constexpr bool has_16_bits = sizeof(S) == 2;

// A stored number, or an array expression of them, as T; exact if T is no narrower. Eigen widens
// 16 bits to float only.
template <class T, class S>
T as(S x) {
  if constexpr (has_16_bits<S>) {
    return static_cast<T>(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}
template <class T, class S>
void copy_as(const S* from, Index count, T* to) {
  const Eigen::Map<const Eigen::Array<S, Eigen::Dynamic, 1>> in(from, count);
  Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>> out(to, count);
  if constexpr (has_16_bits<S>) {
    out = in.template cast<float>().template cast<T>();
  } else {
    out = in.template cast<T>();
  }
}

// Rotary positions: the pairs of entries of row i are turned by the angles in row first + i of
// a table, which holds their cosines and then their sines.
template <class T>
struct Rotary {
  const T* table = nullptr;  // none: nothing is turned
  Index first = 0;
  bool halves = false;  // pairs are p and p + d / 2 instead of 2 p and 2 p + 1

  void turn(Index row, T* x, Index cols) const {
    const Index pairs = cols / 2;
    const Index step = halves ? 1 : 2;
    const Index partner = halves ? pairs : 1;
    const T* cosines = table + (first + row) * cols;
    const T* sines = cosines + pairs;
    for (Index p = 0; p < pairs; ++p) {
      T& a = x[p * step];
      T& b = x[p * step + partner];
      const T turned = a * cosines[p] - b * sines[p];
      b = a * sines[p] + b * cosines[p];
      a = turned;
    }
  }
};

// A stack of row-major matrices, one for each head of each batch entry, to be read as T.
template <class T>
struct Heads {
  Stored data;
  Index count = 0;
  Index rows = 0;
  Index cols = 0;
  Index head_stride = 0;
  Index row_stride = 0;
  Rotary<T> rotary = {};

  // A head where it lies; only of numbers that are stored as T.
  MatrixView<T> operator[](Index head) const {
    return MatrixView<T>(std::get<const T*>(data) + head * head_stride, rows, cols,
                         RowStride(row_stride));
  }
};

template <class T>
using RowView = Eigen::Map<const Eigen::Matrix<T, 1, Eigen::Dynamic>>;

// Reads rows of heads; each thread has its own.
template <class T>
class HeadRows {
 public:
  explicit HeadRows(const Heads<T>& heads) : heads_(heads) {}

  const Heads<T>& heads() const { return heads_; }

  // Valid until the next call: where it lies if it can be read as it is.
  RowView<T> row(Index head, Index i) {
    const Index at = head * heads_.head_stride + i * heads_.row_stride;
    const T* const* plain = std::get_if<const T*>(&heads_.data);
    if (plain && !heads_.rotary.table) return {*plain + at, heads_.cols};
    T* out = row_.ensure(heads_.cols);
    std::visit([&](const auto* stored) { copy_as<T>(stored + at, heads_.cols, out); }, heads_.data);
    if (heads_.rotary.table) heads_.rotary.turn(i, out, heads_.cols);
    return {out, heads_.cols};
  }

 private:
  Heads<T> heads_;
  Buffer<T> row_;
};

}  // namespace headfit
