// The boundary between NumPy arrays and the core's views. Nothing is copied here:
// an array that does not fit is refused, and Python prepares it.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "headfit/base/errors.hpp"
#include "headfit/base/threads.hpp"
#include "headfit/scores/attention.hpp"

namespace headfit::python {

namespace py = pybind11;

template <class T>
using Array = py::array_t<T>;

// The number of items between neighbours along an axis.
template <class T>
Index item_stride(const py::array& a, int axis) {
  return a.strides(axis) / static_cast<Index>(sizeof(T));
}

template <class T>
Heads<T> heads_of(const py::array& a, const char* name) {
  if (!py::isinstance<Array<T>>(a) || a.ndim() != 3) {
    throw InputError(std::string(name) + " must be a stack of matrices of the common dtype");
  }
  if (a.size() > 0 && a.shape(2) > 1 && item_stride<T>(a, 2) != 1) {
    throw InputError(std::string(name) + " must have contiguous rows");
  }
  return {static_cast<const T*>(a.data()), a.shape(0), a.shape(1), a.shape(2),
          item_stride<T>(a, 0), item_stride<T>(a, 1)};
}

template <class T>
OutHeads<T> out_of(py::array& a, Index heads, Index rows, Index cols) {
  if (!py::isinstance<Array<T>>(a) || a.ndim() != 3 || a.shape(0) != heads ||
      a.shape(1) != rows || a.shape(2) != cols ||
      (a.size() > 0 && cols > 1 && item_stride<T>(a, 2) != 1)) {
    throw InputError("out must have the shape and dtype of the result and contiguous rows");
  }
  return {static_cast<T*>(a.mutable_data()), item_stride<T>(a, 0), item_stride<T>(a, 1)};
}

template <class T>
std::span<const T> span_of(const Array<T>& a) {
  return {a.data(), static_cast<std::size_t>(a.size())};
}

// Ctrl-C: the calling thread asks Python for pending signals now and then.
inline Run make_run(int threads) {
  return {threads, [] {
            const py::gil_scoped_acquire gil;
            if (PyErr_CheckSignals() != 0) throw py::error_already_set();
          }};
}

// Calls f.operator()<T>() for the array's dtype, without the interpreter lock.
template <class F>
auto without_gil(const py::array& a, F&& f) {
  const bool is_float = py::isinstance<Array<float>>(a);
  if (!is_float && !py::isinstance<Array<double>>(a)) {
    throw InputError("arrays must be float32 or float64");
  }
  const py::gil_scoped_release release;
  return is_float ? f.template operator()<float>() : f.template operator()<double>();
}

void bind_scores(py::module_& m);
void bind_pattern(py::module_& m);
void bind_construct(py::module_& m);
void bind_soft(py::module_& m);
void bind_certify(py::module_& m);
void bind_sparsify(py::module_& m);
void bind_analysis(py::module_& m);

}  // namespace headfit::python
