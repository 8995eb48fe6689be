#include "headfit/construct/projection.hpp"

#include "targets.hpp"

namespace headfit::python {
namespace {

Sketch sketch_named(const std::string& name) {
  if (name == "gaussian") return Sketch::gaussian;
  if (name == "rademacher") return Sketch::rademacher;
  throw InputError("sketch must be 'gaussian' or 'rademacher'; got '" + name + "'");
}

template <class T>
Eigen::Map<Matrix<T>> matrix_of(py::array& a) {
  if (!py::isinstance<py::array_t<T, py::array::c_style>>(a) || a.ndim() != 2) {
    throw InputError("out must be a C-contiguous matrix");
  }
  return {static_cast<T*>(a.mutable_data()), a.shape(0), a.shape(1)};
}

}  // namespace

void bind_construct(py::module_& m) {
  m.def("fill_sketch", [](py::array g, const std::string& kind, std::uint64_t seed, int threads) {
    const Run run = make_run(threads);
    const Sketch sketch = sketch_named(kind);
    without_gil(g, [&]<class T>() { fill_sketch<T>(sketch, seed, matrix_of<T>(g), run); });
  }, py::arg("g"), py::arg("kind"), py::arg("seed"), py::arg("threads"));

  m.def("target_logits", [](const Array<Offset>& offsets, const Array<Column>& columns,
                            const Array<double>& weights, double leak, double distortion) {
    Array<double> b(columns.size());
    target_logits(target_of(offsets, columns, weights), leak, distortion,
                  {b.mutable_data(), static_cast<std::size_t>(b.size())});
    return b;
  }, py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("leak"),
     py::arg("distortion"));

  m.def("project_identity", [](const Array<Offset>& offsets, const Array<Column>& columns,
                               const Array<double>& weights, double leak, double distortion,
                               const std::string& kind, std::uint64_t seed, double query_scale,
                               py::array q, py::array k, int threads) {
    const Run run = make_run(threads);
    const Sketch sketch = sketch_named(kind);
    const Target target = target_of(offsets, columns, weights);
    without_gil(q, [&]<class T>() {
      project_identity<T>(target, leak, distortion, sketch, seed, query_scale, matrix_of<T>(q),
                          matrix_of<T>(k), run);
    });
  }, py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("leak"),
     py::arg("distortion"), py::arg("kind"), py::arg("seed"), py::arg("query_scale"), py::arg("q"),
     py::arg("k"), py::arg("threads"));
}

}  // namespace headfit::python
