// Sparse patterns out of attention.
#include "headfit/sparsify/sparsify.hpp"

#include "targets.hpp"

namespace headfit::python {
namespace {

struct SparsifyArguments {
  Index per_row;
  double mass;
  Index per_column;
  Array<Column> exempt;
  bool exempt_sinks;
  bool keep_max;

  SparsifyOptions options() const {
    return {per_row,         mass,         per_column,
            span_of(exempt), exempt_sinks, keep_max ? OnEmpty::keep_max : OnEmpty::raise};
  }
};

py::tuple as_tuple(const SparseRows& rows) {
  return py::make_tuple(array_of(rows.offsets), array_of(rows.columns), array_of(rows.weights),
                        array_of(rows.dropped), array_of(rows.exempt));
}

}  // namespace

void bind_sparsify(py::module_& m) {
  py::class_<SparsifyArguments>(m, "SparsifyOptions")
      .def(py::init([](Index per_row, double mass, Index per_column, const py::array& exempt,
                       bool exempt_sinks, bool keep_max) {
    return SparsifyArguments{per_row,      mass,    per_column, vector_of<Column>(exempt, "exempt"),
                             exempt_sinks, keep_max};
  }),
           py::arg("per_row"), py::arg("mass"), py::arg("per_column"), py::arg("exempt"),
           py::arg("exempt_sinks"), py::arg("keep_max"));

  m.def("sparsify_logits",
        [](const LogitArrays& x, const SparsifyArguments& arguments, int threads) {
    const PythonRun run(threads);
    return as_tuple(compute_in(x.in_double(), [&]<class T>() {
      const LogitSource<T> source = x.view<T>();
      const SparsifyOptions options = arguments.options();
      const py::gil_scoped_release release;
      return sparsify_logits(source, options, run);
    }));
  }, Standard(), py::arg("logits"), py::arg("options"), py::arg("threads"));

  m.def("sparsify_matrix",
        [](const py::array& matrix, const MaskArrays& mask, const SparsifyArguments& arguments,
           int threads) {
    const PythonRun run(threads);
    return as_tuple(compute_in(holds_doubles(matrix), [&]<class T>() {
      const Heads<T> entries = heads_of<T>(matrix, "M");
      const Mask view = mask.checked_view(entries.count, entries.rows, entries.cols);
      const SparsifyOptions options = arguments.options();
      const py::gil_scoped_release release;
      return sparsify_matrix(entries, view, options, run);
    }));
  },
        Standard(), py::arg("matrix"), py::arg("mask"), py::arg("options"), py::arg("threads"));

  py::class_<CompressedArrays>(m, "CompressedRows")
      .def(py::init([](const py::array& offsets, const py::array& columns, const py::array& weights,
                       Index cols) {
    return CompressedArrays{vector_of<Offset>(offsets, "offsets"),
                            vector_of<Column>(columns, "columns"),
                            vector_of<double>(weights, "weights"), cols};
  }),
           py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("cols"));

  m.def("sparsify_compressed",
        [](const CompressedArrays& matrix, const MaskArrays& mask,
           const SparsifyArguments& arguments, int threads) {
    const PythonRun run(threads);
    const CompressedRows entries = matrix.view();
    const Mask allowed = mask.checked_view(1, entries.rows, entries.cols);
    const SparsifyOptions options = arguments.options();
    SparseRows rows;
    {
      const py::gil_scoped_release release;
      rows = sparsify_compressed(entries, allowed, options, run);
    }
    return as_tuple(rows);
  },
        Standard(), py::arg("matrix"), py::arg("mask"), py::arg("options"), py::arg("threads"));

  m.def("nearest_points",
        [](const py::array& points, Index per_row, Index per_column, int threads) {
    const PythonRun run(threads);
    const Heads<double> view = one_head<double>(points, "points");
    const std::span<const double> numbers(std::get<const double*>(view.data),
                                          static_cast<std::size_t>(view.rows * view.cols));
    SparseRows rows;
    {
      const py::gil_scoped_release release;
      rows = nearest_points(numbers, view.cols, per_row, per_column, run);
    }
    return py::make_tuple(array_of(rows.offsets), array_of(rows.columns), array_of(rows.weights));
  }, Standard(), py::arg("points"), py::arg("per_row"), py::arg("per_column"), py::arg("threads"));
}

}  // namespace headfit::python
