// The boundary between NumPy arrays and the core's views. Nothing is copied here: an array that
// does not fit is refused, and the Python package converts it before it calls.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "headfit/attention/attention.hpp"
#include "headfit/base/errors.hpp"
#include "headfit/base/standard_arithmetic.hpp"
#include "headfit/base/threads.hpp"

namespace headfit::python {

namespace py = pybind11;

template <class T>
using Array = py::array_t<T>;

// The number of items between neighbours along an axis.
inline Index item_stride(const py::array& a, int axis) { return a.strides(axis) / a.itemsize(); }

inline bool holds_doubles(const py::array& a) { return py::isinstance<Array<double>>(a); }

// The first number of an array that is stored in T or in a narrower type, to be computed with as T.
// NumPy has no bfloat16: such arrays come as records of 16 bits.
template <class T>
Stored stored_for(const py::array& a, const char* name) {
  if (py::isinstance<Array<T>>(a)) return static_cast<const T*>(a.data());
  if (py::isinstance<Array<float>>(a)) return static_cast<const float*>(a.data());
  const char kind = a.itemsize() == 2 ? a.dtype().kind() : ' ';
  if (kind == 'f') return static_cast<const Eigen::half*>(a.data());
  if (kind == 'V') return static_cast<const Eigen::bfloat16*>(a.data());
  throw InputError(name, " must hold floats, no wider than what they are computed in");
}

template <class T>
Heads<T> heads_of(const py::array& a, const char* name) {
  if (a.ndim() != 3) throw InputError(name, " must be a stack of matrices");
  if (a.size() > 0 && a.shape(2) > 1 && item_stride(a, 2) != 1) {
    throw InputError(name, " must have contiguous rows");
  }
  return {stored_for<T>(a, name), a.shape(0),       a.shape(1), a.shape(2),
          item_stride(a, 0),      item_stride(a, 1)};
}

template <class T>
OutHeads<T> out_of(py::array& a, Index heads, Index rows, Index cols) {
  if (!py::isinstance<Array<T>>(a) || a.ndim() != 3 || a.shape(0) != heads || a.shape(1) != rows ||
      a.shape(2) != cols || (a.size() > 0 && cols > 1 && item_stride(a, 2) != 1)) {
    throw InputError("out must have the shape and dtype of the result and contiguous rows");
  }
  return {static_cast<T*>(a.mutable_data()), item_stride(a, 0), item_stride(a, 1)};
}

// A one-dimensional array of exactly this type without gaps, such as the core reads through a
// pointer.
template <class T>
Array<T> vector_of(const py::array& a, const char* name) {
  if (!py::isinstance<py::array_t<T, py::array::c_style>>(a) || a.ndim() != 1) {
    throw InputError(name, " must be a contiguous vector of ",
                     py::str(py::dtype::of<T>()).cast<std::string>());
  }
  return py::reinterpret_borrow<Array<T>>(a);
}
template <class T>
std::optional<Array<T>> vector_of(const std::optional<py::array>& a, const char* name) {
  return a ? std::optional(vector_of<T>(*a, name)) : std::nullopt;
}

template <class T>
std::span<const T> span_of(const Array<T>& a) {
  return {a.data(), static_cast<std::size_t>(a.size())};
}
template <class T>
std::span<const T> span_of(const std::optional<Array<T>>& a) {
  return a ? span_of(*a) : std::span<const T>();
}

// One head, as a matrix without gaps.
template <class T>
Heads<T> one_head(const py::array& a, const char* name) {
  if (!py::isinstance<py::array_t<T, py::array::c_style>>(a) || a.ndim() != 2) {
    throw InputError(name, " must be a C-contiguous matrix of ",
                     py::str(py::dtype::of<T>()).cast<std::string>());
  }
  return {static_cast<const T*>(a.data()), 1, a.shape(0), a.shape(1), a.size(), a.shape(1)};
}

inline Matrix<double> matrix_of(const py::array& a, const char* name) {
  return one_head<double>(a, name)[0];
}

// Results of the core as new arrays.
template <class T>
Array<T> array_of(const Matrix<T>& x) {
  Array<T> a(std::vector<Index>{x.rows(), x.cols()});
  std::copy_n(x.data(), x.size(), a.mutable_data());
  return a;
}
template <class T>
Array<T> array_of(const Vector<T>& x) {
  return Array<T>(x.size(), x.data());
}
template <class T>
Array<T> array_of(const std::vector<T>& x) {
  return Array<T>(static_cast<Index>(x.size()), x.data());
}

// Must be held while the core calls a user's Python code. It takes the interpreter lock, and when
// the call returns it restores the standard arithmetic, which this code may have changed.
struct UserCode {
  py::gil_scoped_acquire gil;
  StandardArithmetic kept;
};

// What calls done(number, loss) after each of several fits; empty for None.
template <class Result>
std::function<void(Index, const Result&)> loss_report(const py::object& done) {
  if (done.is_none()) return {};
  return [&done](Index at, const Result& result) {
    const UserCode here;
    done(at, result.loss);
  };
}

// The time at which calls from this thread end with a TimeoutError.
inline std::chrono::steady_clock::time_point& call_deadline() {
  thread_local auto deadline = std::chrono::steady_clock::time_point::max();
  return deadline;
}

// How to run a call from Python. At every checkpoint until the call returns, the calling thread
// asks Python for pending signals, such as Ctrl-C, and looks at its deadline.
struct PythonRun : Run {
  explicit PythonRun(int count)
      : Run{count, [deadline = call_deadline()] {
              const py::gil_scoped_acquire gil;
              if (PyErr_CheckSignals() != 0) throw py::error_already_set();
              if (std::chrono::steady_clock::now() > deadline) {
                PyErr_SetString(PyExc_TimeoutError, "the time limit came");
                throw py::error_already_set();
              }
            }} {}

 private:
  Interruptible here_{poll};
};

// Calls f.operator()<T>() with T the type to compute in. `f` makes its views of arrays while it
// holds the interpreter lock, and releases the lock for the work.
template <class F>
auto compute_in(bool doubles, F&& f) {
  return doubles ? f.template operator()<double>() : f.template operator()<float>();
}

// The call guard of every function of the module: it computes in standard arithmetic, whatever its
// caller has set.
using Standard = py::call_guard<StandardArithmetic>;

void bind_calls(py::module_& m);
void bind_logits(py::module_& m);
void bind_attention(py::module_& m);
void bind_pattern(py::module_& m);
void bind_lower(py::module_& m);
void bind_certify(py::module_& m);
void bind_projection(py::module_& m);
void bind_max_margin(py::module_& m);
void bind_learned(py::module_& m);
void bind_soft(py::module_& m);
void bind_compress(py::module_& m);
void bind_cache(py::module_& m);
void bind_index(py::module_& m);
void bind_sparsify(py::module_& m);
void bind_analysis(py::module_& m);

}  // namespace headfit::python
