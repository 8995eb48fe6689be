// What Python hands over to describe logits, with the arrays that the core's views point into.
#pragma once

#include "arrays.hpp"

namespace headfit::python {

struct MaskArrays {
  std::optional<Index> left;
  std::optional<Index> right;
  std::optional<Array<bool>> dense;  // (heads, n, m), any strides
  std::optional<Array<Offset>> sparse_offsets;
  std::optional<Array<Column>> sparse_columns;
  std::optional<Array<Index>> key_lengths;  // (heads,)
  std::optional<Array<bool>> keys;          // (heads, m), any strides

  // Return the core's view of the mask for logits of this shape. Arrays of other sizes are refused,
  // since the core would read beyond their ends. `checked_view` also checks the contents of the
  // arrays, which takes O(nonzeros).
  Mask view(Index heads, Index rows, Index cols) const;
  Mask checked_view(Index heads, Index rows, Index cols) const;
};

struct LogitOptions {
  Index group = 1;
  double scale = 1;
  double softcap = 0;
  MaskArrays mask;
  std::optional<py::array> bias;  // (heads, n, m), any strides
  // For each position the cosines and then the sines of its angles, in the type to compute in. The
  // last row is that of the last key and of the last query.
  std::optional<py::array> rotary;
  bool rotary_halves = false;
  std::optional<Array<double>> sinks;  // (heads,)
};

// Queries, keys and bias are read as float64 where Q or K is float64, else as float32.
struct LogitArrays {
  py::array q;  // (heads, n, d)
  py::array k;  // (heads / group, m, d)
  LogitOptions options;
  std::optional<Array<Index>> rows;  // if there is none: all rows in order

  bool in_double() const { return holds_doubles(q) || holds_doubles(k); }
  Index heads() const { return q.shape(0); }
  Index row_count() const { return rows ? rows->size() : q.shape(1); }
  Index cols() const { return k.shape(1); }

  template <class T>
  LogitSource<T> view() const {
    LogitSource<T> source;
    source.q = heads_of<T>(q, "Q");
    source.k = heads_of<T>(k, "K");
    source.group = options.group;
    source.scale = options.scale;
    source.softcap = options.softcap;
    source.mask = options.mask.view(source.q.count, source.q.rows, source.k.rows);
    if (options.bias) source.bias = bias_of<T>(*options.bias);
    if (rows) source.rows = span_of(*rows);
    if (options.rotary) turn(source);
    if (options.sinks) {
      if (options.sinks->size() != heads()) {
        throw InputError("sinks must be one for each of the ", heads(), " heads; got ",
                         options.sinks->size());
      }
      source.sinks = options.sinks->data();
    }
    return source;
  }

 private:
  template <class T>
  Bias bias_of(const py::array& bias) const {
    if (bias.ndim() != 3 || bias.shape(0) != heads() || bias.shape(1) != q.shape(1) ||
        bias.shape(2) != cols()) {
      throw InputError("bias must have the shape of the logits: heads, rows, keys");
    }
    return {stored_for<T>(bias, "bias"), item_stride(bias, 0), item_stride(bias, 1),
            item_stride(bias, 2)};
  }

  template <class T>
  void turn(LogitSource<T>& source) const {
    const py::array& angles = *options.rotary;
    const Index positions = std::max(source.q.rows, source.k.rows);
    if (!py::isinstance<py::array_t<T, py::array::c_style>>(angles) || angles.ndim() != 2 ||
        angles.shape(0) != positions || angles.shape(1) != source.q.cols) {
      throw InputError("rotary must be a C-contiguous row of cosines and sines for each position");
    }
    const T* table = static_cast<const T*>(angles.data());
    source.q.rotary = {table, positions - source.q.rows, options.rotary_halves};
    source.k.rotary = {table, positions - source.k.rows, options.rotary_halves};
  }
};

}  // namespace headfit::python
