// What Python hands over to describe logits, and the arrays that keep it alive.
#pragma once

#include <optional>

#include "arrays.hpp"

namespace headfit::python {

struct MaskArrays {
  std::optional<Index> left;
  std::optional<Index> right;
  std::optional<Array<bool>> dense;  // (heads, n, m), any strides
  std::optional<Array<Offset>> sparse_offsets;
  std::optional<Array<Column>> sparse_columns;
  std::optional<Array<Index>> key_lengths;  // (heads,)

  Mask view() const;
};

struct LogitArrays {
  py::array q;  // (heads, n, d)
  py::array k;  // (heads / group, m, d)
  Index group = 1;
  double scale = 1;
  double softcap = 0;
  MaskArrays mask;
  std::optional<py::array> bias;  // (heads, n, m), any strides
  std::optional<Array<Index>> rows;

  Index heads() const { return q.shape(0); }
  Index row_count() const { return rows ? rows->size() : q.shape(1); }
  Index cols() const { return k.shape(1); }

  template <class T>
  LogitSource<T> view() const {
    LogitSource<T> source;
    source.q = heads_of<T>(q, "Q");
    source.k = heads_of<T>(k, "K");
    source.group = group;
    source.scale = scale;
    source.softcap = softcap;
    source.mask = mask.view();
    if (bias) {
      source.bias = {static_cast<const T*>(bias->data()), item_stride<T>(*bias, 0),
                     item_stride<T>(*bias, 1), item_stride<T>(*bias, 2)};
    }
    if (rows) source.rows = span_of(*rows);
    return source;
  }
};

}  // namespace headfit::python
