// What defines attention: queries, keys, scale, soft-cap, bias and mask, which make the logits, and
// the sinks of its softmax; and the checks of what callers give. These are views; none of them owns
// memory.
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

  bool operator==(const ColumnRange&) const = default;
};

// Flags as bytes: any byte but 0 is true. NumPy's booleans may be such bytes, C++'s only 0 and 1.
inline const std::uint8_t* bytes_of(const bool* flags) {
  return reinterpret_cast<const std::uint8_t*>(flags);
}

// Which positions a row may attend to. A position is allowed if everything that is set here allows
// it.
struct Mask {
  // A window: row i stands at position p = i + m - n (bottom-right aligned) and sees the columns
  // p - left ... p + right. A bound that is missing does not restrict.
  std::optional<Index> left;
  std::optional<Index> right;
  // A dense boolean array, true where attention is allowed; strides may be 0.
  const bool* dense = nullptr;
  Index dense_head = 0, dense_row = 0, dense_col = 0;
  // A sparse boolean matrix with sorted columns, shared by all heads.
  const Offset* sparse_offsets = nullptr;
  const Column* sparse_columns = nullptr;
  // For each query head the number of keys that are not padding.
  const Index* key_lengths = nullptr;
  // For each query head and key whether rows may attend to it; strides may be 0.
  const bool* keys = nullptr;
  Index keys_head = 0, keys_col = 0;

  // Whether every position is allowed.
  bool is_open() const { return !left && !right && !has_pattern() && !key_lengths; }
  // Whether single positions within the range of a row may be masked.
  bool has_pattern() const { return dense || sparse_offsets || keys; }
  // What restricts beside the sparse matrix.
  Mask besides_sparse() const {
    Mask others = *this;
    others.sparse_offsets = nullptr;
    return others;
  }
  std::span<const Column> sparse_row(Index row) const {
    return {sparse_columns + sparse_offsets[row], sparse_columns + sparse_offsets[row + 1]};
  }
  bool has_key(Index head, Index col) const {
    return !keys || bytes_of(keys)[head * keys_head + col * keys_col] != 0;
  }
  // Whether a key is no padding: it lies within the length of the head, and is not masked itself.
  bool exists(Index head, Index col) const {
    return (!key_lengths || col < key_lengths[head]) && has_key(head, col);
  }

  // Whether it is the same for all heads; one that stores a dense array for each counts as different.
  bool is_shared(Index heads, Index cols) const;

  ColumnRange range(Index head, Index row, Index rows, Index cols) const {
    const Index position = row + cols - rows;
    const Index stop = key_lengths ? key_lengths[head] : cols;
    const Index begin = left ? std::clamp<Index>(position - *left, 0, stop) : 0;
    const Index end = right ? std::clamp<Index>(position + *right + 1, begin, stop) : stop;
    return {begin, end};
  }

  // The columns of a row's range from the first to the last entry of its sparse row; none if that is
  // empty.
  ColumnRange columns(Index head, Index row, Index rows, Index cols) const {
    const ColumnRange open = range(head, row, rows, cols);
    if (!sparse_offsets) return open;
    const auto own = sparse_row(row);
    if (own.empty()) return {open.begin, open.begin};
    return {std::max<Index>(open.begin, own.front()),
            std::min<Index>(open.end, own.back() + Index(1))};
  }

  bool allows(Index head, Index row, Index col, Index rows, Index cols) const {
    const ColumnRange open = range(head, row, rows, cols);
    if (col < open.begin || col >= open.end) return false;
    const Index at = head * dense_head + row * dense_row + col * dense_col;
    if (dense && bytes_of(dense)[at] == 0) return false;
    if (!has_key(head, col)) return false;
    if (!sparse_offsets) return true;
    const auto columns = sparse_row(row);
    return std::binary_search(columns.begin(), columns.end(), static_cast<Column>(col));
  }
};

// Throws an InputError unless the mask fits logits of this shape: windows that are not negative,
// key lengths within the number of keys, sparse rows with ascending offsets and sorted columns in
// range. A mask is a view, so how long its arrays are only their owner knows.
void check_mask(const Mask& mask, Index heads, Index rows, Index cols);

// Whether two masks that were checked allow the same positions. Takes O(rows + nonzeros) for each
// head where neither is dense.
bool masks_agree(const Mask& a, const Mask& b, Index heads, Index rows, Index cols);

// A bias that is added to the logits; strides may be 0 (broadcast). -inf masks a position.
struct Bias {
  Stored data;
  Index head = 0, row = 0, col = 0;

  bool is_set() const {
    return std::visit([](const auto* first) { return first != nullptr; }, data);
  }
  // The bias of a position of the first head.
  double at(Index i, Index j) const {
    return std::visit([&](const auto* b) { return as<double>(b[i * row + j * col]); }, data);
  }
};

// logits = softcap(scale * Q K^T) + bias where the mask allows, else -inf, with
// softcap(s) = c * tanh(s / c). Query head h reads key head h / group.
//
// Attention is the softmax of the logits. With sinks, exp(sink of the head) is added to the sum of
// exponentials that each row is divided by, so that rows sum to less than 1.
template <class T>
struct LogitSource {
  Heads<T> q;
  Heads<T> k;
  Index group = 1;
  double scale = 1;
  double softcap = 0;  // 0 for none
  Mask mask;
  Bias bias;
  std::optional<std::span<const Index>> rows;  // if missing, all rows in order
  const double* sinks = nullptr;  // for each query head a logit, or -inf for no sink

  Index row_count() const { return rows ? static_cast<Index>(rows->size()) : q.rows; }
  Index row_at(Index place) const {
    return rows ? (*rows)[static_cast<std::size_t>(place)] : place;
  }
  // Whether entries, which need rows of x here and there, best read these keys or values where they
  // lie. A copy begins each row with a cache line and may lie in huge pages, but it pays only where
  // the head is large and each of its rows is read often.
  bool is_best_in_place(const Heads<T>& x) const {
    constexpr Index most_bytes = Index(1) << 21, most_reads = 32;
    const bool is_small = x.rows * x.row_stride * Index(sizeof(T)) <= most_bytes;
    const Offset* offsets = mask.sparse_offsets;
    return x.is_plain() && (is_small || (offsets && offsets[q.rows] * group < most_reads * x.rows));
  }
  // Whether a key is no padding for at least one query head.
  bool has_key(Index key) const {
    for (Index h = 0; h < q.count; ++h) {
      if (mask.exists(h, key)) return true;
    }
    return false;
  }
  // The logit that the rows of a head share in the denominator of the softmax; -inf for none. It is
  // rounded to T, as all logits are: a row may be shifted by it.
  double sink(Index head) const {
    constexpr T none = -std::numeric_limits<T>::infinity();
    return static_cast<double>(sinks ? static_cast<T>(sinks[head]) : none);
  }

  // Throws InputError unless the shapes fit each other and the numbers can be used.
  void validate() const;
};

// The rows of a matrix that belong to the keys of a source, without those of padding.
template <class T, class Rows>
Matrix<T> without_padding(const LogitSource<T>& source, const Rows& of_keys) {
  Matrix<T> rows = of_keys;
  Index count = 0;
  for (Index j = 0; j < of_keys.rows(); ++j) {
    if (source.has_key(j)) rows.row(count++) = of_keys.row(j);
  }
  rows.conservativeResize(count, Eigen::NoChange);
  return rows;
}

// One query head of a source, with its key head.
template <class T>
LogitSource<T> query_head_of(const LogitSource<T>& source, Index head) {
  const auto advance = [](Stored& data, Index items) {
    std::visit([&](auto*& first) {
      if (first) first += items;
    }, data);
  };
  LogitSource<T> one = source;
  advance(one.q.data, head * source.q.head_stride);
  advance(one.k.data, head / source.group * source.k.head_stride);
  advance(one.bias.data, head * source.bias.head);
  if (one.mask.dense) one.mask.dense += head * one.mask.dense_head;
  if (one.mask.key_lengths) one.mask.key_lengths += head;
  if (one.mask.keys) one.mask.keys += head * one.mask.keys_head;
  if (one.sinks) one.sinks += head;
  one.q.count = one.k.count = one.group = 1;
  return one;
}

}  // namespace headfit
