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

// Q, K and bias are read as float64 where one of Q and K is that, else as float32.
struct LogitArrays {
  py::array q;  // (heads, n, d)
  py::array k;  // (heads / group, m, d)
  Index group = 1;
  double scale = 1;
  double softcap = 0;
  MaskArrays mask;
  std::optional<py::array> bias;  // (heads, n, m), any strides
  std::optional<Array<Index>> rows;
  // A row for each position, the last one that of the last key and the last query: the cosines
  // and sines of its angles, in the type to compute in.
  std::optional<py::array> rotary;
  bool rotary_halves = false;

  bool in_double() const { return holds_doubles(q) || holds_doubles(k); }
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
      source.bias = {stored_for<T>(*bias, "bias"), item_stride(*bias, 0), item_stride(*bias, 1),
                     item_stride(*bias, 2)};
    }
    if (rows) source.rows = span_of(*rows);
    if (rotary) turn(source);
    return source;
  }

 private:
  template <class T>
  void turn(LogitSource<T>& source) const {
    const Index positions = std::max(source.q.rows, source.k.rows);
    if (!py::isinstance<py::array_t<T, py::array::c_style>>(*rotary) || rotary->ndim() != 2 ||
        rotary->shape(0) != positions || rotary->shape(1) != source.q.cols) {
      throw InputError("rotary must be a C-contiguous row of cosines and sines for each position");
    }
    const T* table = static_cast<const T*>(rotary->data());
    source.q.rotary = {table, positions - source.q.rows, rotary_halves};
    source.k.rotary = {table, positions - source.k.rows, rotary_halves};
  }
};

}  // namespace headfit::python
