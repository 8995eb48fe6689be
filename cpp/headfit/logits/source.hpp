// What defines a matrix of logits: queries, keys, scale, and what is added,
// bounded or left out. Views only; nothing here owns memory.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>

#include "headfit/base/errors.hpp"
#include "headfit/logits/heads.hpp"

namespace headfit {

// The half-open range of columns that a row may attend to.
struct ColumnRange {
  Index begin;
  Index end;
};

// Which positions exist. Everything that is set must allow a position.
struct Mask {
  // Row i stands at position p = i + m - n (bottom-right aligned) and sees the
  // columns p - left ... p + right; a missing bound is open.
  std::optional<Index> left;
  std::optional<Index> right;
  // A dense boolean array, true where attention is allowed; strides may be 0.
  const bool* dense = nullptr;
  Index dense_head = 0, dense_row = 0, dense_col = 0;
  // A sparse boolean matrix with sorted columns, shared by all heads.
  const Offset* sparse_offsets = nullptr;
  const Column* sparse_columns = nullptr;
  // For each head the number of keys that are no padding.
  const Index* key_lengths = nullptr;

  // Every position exists.
  bool is_open() const { return !left && !right && !has_pattern() && !key_lengths; }
  bool has_pattern() const { return dense || sparse_offsets; }

  ColumnRange range(Index head, Index row, Index rows, Index cols) const {
    const Index position = row + cols - rows;
    const Index stop = key_lengths ? key_lengths[head] : cols;
    const Index begin = left ? std::clamp<Index>(position - *left, 0, stop) : 0;
    const Index end = right ? std::clamp<Index>(position + *right + 1, begin, stop) : stop;
    return {begin, end};
  }

  bool allows(Index head, Index row, Index col, Index rows, Index cols) const {
    const ColumnRange open = range(head, row, rows, cols);
    if (col < open.begin || col >= open.end) return false;
    if (dense && !dense[head * dense_head + row * dense_row + col * dense_col]) return false;
    return !sparse_offsets || std::binary_search(sparse_columns + sparse_offsets[row],
                                                 sparse_columns + sparse_offsets[row + 1],
                                                 static_cast<Column>(col));
  }
};

// Added to the logits; strides may be 0 (broadcast). -inf leaves a position out.
struct Bias {
  Stored data;
  Index head = 0, row = 0, col = 0;

  bool is_set() const {
    return std::visit([](const auto* first) { return first != nullptr; }, data);
  }
};

// logits = softcap(scale * Q K^T) + bias where the mask allows, else -inf, with
// softcap(s) = c * tanh(s / c). Query head h reads key head h / group.
template <class T>
struct LogitSource {
  Heads<T> q;
  Heads<T> k;
  Index group = 1;
  double scale = 1;
  double softcap = 0;  // 0: none
  Mask mask;
  Bias bias;
  std::optional<std::span<const Index>> rows;  // missing: all rows, in order

  Index row_count() const { return rows ? static_cast<Index>(rows->size()) : q.rows; }
  Index row_at(Index place) const {
    return rows ? (*rows)[static_cast<std::size_t>(place)] : place;
  }

  void validate() const {
    if (q.cols != k.cols) {
      throw InputError("Q and K must have the same head size; got " + std::to_string(q.cols) +
                       " and " + std::to_string(k.cols));
    }
    if (group < 1 || q.count != group * k.count) {
      throw InputError("the heads of K must divide those of Q; got " + std::to_string(k.count) +
                       " and " + std::to_string(q.count));
    }
    const double size = std::abs(scale);
    if (!(size >= std::numeric_limits<T>::min() && size <= std::numeric_limits<T>::max())) {
      throw InputError(
          "scale must be finite, nonzero and a normal number of the arrays' dtype; got " +
          std::to_string(scale));
    }
    if (!(softcap >= 0 && softcap <= std::numeric_limits<T>::max())) {
      throw InputError("softcap must be positive and finite; got " + std::to_string(softcap));
    }
    for (Index place = 0; rows && place < row_count(); ++place) {
      if (row_at(place) < 0 || row_at(place) >= q.rows) {
        throw InputError("rows must lie in 0 ... " + std::to_string(q.rows - 1) + "; got " +
                         std::to_string(row_at(place)) + " at place " + std::to_string(place));
      }
    }
  }
};

}  // namespace headfit
