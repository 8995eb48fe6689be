// Lays out operands for the microkernel, and checks them for NaN and infinity on the way.
#pragma once

#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/logits/microkernel.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

template <class T>
[[noreturn]] void throw_nonfinite(const char* name, Index head, Index heads, Index row, Index col,
                                  T value);

// How many keys are not padding for at least one of the query heads that share a key head. Others are
// never read.
template <class T>
Index valid_keys(const LogitSource<T>& source, Index key_head) {
  if (!source.mask.key_lengths) return source.k.rows;
  const Index* lengths = source.mask.key_lengths + key_head * source.group;
  return *std::max_element(lengths, lengths + source.group);
}

// Returns a row and raises `largest` to its largest |entry|. Throws NonFiniteError, which names the
// entry, if one is not finite.
template <class T>
RowView<T> checked_row(const char* name, HeadRows<T>& x, Index head, Index i, T& largest);

// Packs the queries at places first ... first + count - 1 of a source, times the scale, in groups:
// group g holds depth x row_group entries. Returns the largest |entry| before the scale is applied.
template <class T>
T pack_queries(HeadRows<T>& queries, const LogitSource<T>& source, Index head, Index first,
               Index count, T* out, Checkpoints& checkpoints);

// How keys are packed: for tiles, for single entries, or for both.
struct KeyLayouts {
  bool panels = true;
  bool rows = false;

  // How many numbers are stored of a key.
  template <class T>
  Index key_size(Index depth) const {
    return Index(panels) * depth + Index(rows) * round_up(depth, Blocking<T>::lanes);
  }
  KeyLayouts& operator|=(const KeyLayouts& other) {
    panels |= other.panels;
    rows |= other.rows;
    return *this;
  }
};

// The keys of a few heads, packed by all threads, and the largest |entry| of each head. In panels keys
// are columns: panel p holds depth x Blocking::panel entries, for the keys from p * Blocking::panel
// on. Places beyond the last key are zero. In rows, each key is padded with zeros to whole vectors. The
// stream reads them again for every block of rows. There is no other copy of the keys in T. Rows that
// need no padding, conversion or rotation are checked and read where they lie, if that is best.
template <class T>
class PackedKeys {
 public:
  PackedKeys(const LogitSource<T>& source, Index first_head, Index heads, const Run& run,
             const KeyLayouts& layouts = {});

  const KeyLayouts& layouts() const { return layouts_; }
  const T* panel(Index head, Index p) const { return data_.data() + place(head, p); }
  RowsInMemory<T> rows(Index head) const {
    if (are_in_place_) return {keys_[head].data(), keys_.row_stride};
    return {row_data_.data() + row_place(head, 0), row_width_};
  }
  Index row_width() const { return row_width_; }
  Index first() const { return first_; }
  Index heads() const { return static_cast<Index>(max_abs_.size()); }
  double max_abs(Index head) const { return max_abs_[static_cast<std::size_t>(head - first_)]; }

 private:
  Index place(Index head, Index p) const { return ((head - first_) * panels_ + p) * panel_size_; }
  Index row_place(Index head, Index row) const {
    return ((head - first_) * panels_ * Blocking<T>::panel + row) * row_width_;
  }
  T pack(HeadRows<T>& keys, Index head, Index panel, Index valid_rows, Checkpoints& checkpoints);

  KeyLayouts layouts_;
  Heads<T> keys_;
  bool are_in_place_;
  Index first_;
  Index panels_;
  Index panel_size_;
  Index row_width_;
  std::vector<double> max_abs_;
  Buffer<T> data_;
  Buffer<T> row_data_;
};

}  // namespace headfit
