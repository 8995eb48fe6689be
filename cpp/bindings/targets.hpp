// A target in three NumPy arrays, and its mask.
#pragma once

#include "headfit/pattern/target.hpp"
#include "logits.hpp"

namespace headfit::python {

// Keeps the arrays alive. It cannot keep others from changing them, so the core checks what it
// reads in every call.
struct TargetArrays {
  Array<Offset> offsets;
  Array<Column> columns;
  Array<double> weights;
  MaskArrays mask;

  Index rows() const { return offsets.size() - 1; }

  Target view() const {
    if (offsets.size() < 1 || columns.size() != weights.size() ||
        offsets.data()[rows()] != columns.size()) {
      throw TargetError("A must have row offsets that end at its number of nonzeros");
    }
    return {rows(), offsets.data(), columns.data(), weights.data(), mask.view(1, rows(), rows())};
  }
};

// A nonnegative sparse matrix, with the arrays that it lies in.
struct CompressedArrays {
  Array<Offset> offsets;
  Array<Column> columns;
  Array<double> weights;
  Index cols;

  CompressedRows view() const {
    if (offsets.size() < 1 || columns.size() != weights.size() ||
        offsets.data()[offsets.size() - 1] != columns.size()) {
      throw InputError("M must have row offsets that end at its number of entries");
    }
    return {offsets.size() - 1, cols, offsets.data(), columns.data(), weights.data()};
  }
};

// Calls work(target, run) without the interpreter lock.
template <class F>
auto on_target(const TargetArrays& target, int threads, const F& work) {
  const PythonRun run(threads);
  const Target view = target.view();
  const py::gil_scoped_release release;
  return work(view, run);
}

}  // namespace headfit::python
