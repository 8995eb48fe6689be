#include "headfit/sparsify/sparsify.hpp"

#include "logits.hpp"

namespace headfit::python {
namespace {

struct Arguments {
  Index per_row;
  double mass;
  Index per_column;
  Array<Column> exempt;
  bool exempt_sinks;
  bool keep_max;

  SparsifyOptions options() const {
    return {per_row, mass,         per_column,
            span_of(exempt), exempt_sinks, keep_max ? OnEmpty::keep_max : OnEmpty::raise};
  }
};

template <class T>
Array<T> array_from(const std::vector<T>& values) {
  Array<T> out(static_cast<Index>(values.size()));
  std::copy(values.begin(), values.end(), out.mutable_data());
  return out;
}

py::tuple as_tuple(const SparseRows& rows) {
  return py::make_tuple(array_from(rows.offsets), array_from(rows.columns),
                        array_from(rows.weights), array_from(rows.dropped),
                        array_from(rows.exempt));
}

}  // namespace

void bind_sparsify(py::module_& m) {
  py::class_<Arguments>(m, "SparsifyOptions")
      .def(py::init([](Index per_row, double mass, Index per_column, Array<Column> exempt,
                       bool exempt_sinks, bool keep_max) {
             return Arguments{per_row, mass, per_column, std::move(exempt), exempt_sinks, keep_max};
           }),
           py::arg("per_row"), py::arg("mass"), py::arg("per_column"), py::arg("exempt"),
           py::arg("exempt_sinks"), py::arg("keep_max"));

  m.def("sparsify_logits", [](const LogitArrays& x, const Arguments& arguments, int threads) {
    const PythonRun run(threads);
    return as_tuple(compute_in(x.in_double(), [&]<class T>() {
      const LogitSource<T> source = x.view<T>();
      const SparsifyOptions options = arguments.options();
      const py::gil_scoped_release release;
      return sparsify_logits(source, options, run);
    }));
  }, Standard(), py::arg("logits"), py::arg("options"), py::arg("threads"));

  m.def("sparsify_matrix", [](const py::array& matrix, const MaskArrays& mask,
                              const Arguments& arguments, int threads) {
    const PythonRun run(threads);
    const Mask view = mask.view();
    return as_tuple(compute_in(holds_doubles(matrix), [&]<class T>() {
      const Heads<T> entries = heads_of<T>(matrix, "M");
      const SparsifyOptions options = arguments.options();
      const py::gil_scoped_release release;
      return sparsify_matrix(entries, view, options, run);
    }));
  }, Standard(), py::arg("matrix"), py::arg("mask"), py::arg("options"), py::arg("threads"));

  m.def("sparsify_compressed", [](const Array<Offset>& offsets, const Array<Column>& columns,
                                  const Array<double>& weights, Index cols, const MaskArrays& mask,
                                  const Arguments& arguments, int threads) {
    const PythonRun run(threads);
    const Mask view = mask.view();
    const CompressedRows matrix{offsets.size() - 1, cols, offsets.data(), columns.data(),
                                weights.data()};
    SparseRows rows;
    {
      const py::gil_scoped_release release;
      rows = sparsify_compressed(matrix, view, arguments.options(), run);
    }
    return as_tuple(rows);
  }, Standard(), py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("cols"),
     py::arg("mask"),
     py::arg("options"), py::arg("threads"));
}

}  // namespace headfit::python
