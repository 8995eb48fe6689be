// The projection method.
#include "headfit/projection/projection.hpp"

#include "targets.hpp"

namespace headfit::python {
namespace {

Sketch sketch_named(const std::string& name) {
  if (name == "gaussian") return Sketch::gaussian;
  if (name == "rademacher") return Sketch::rademacher;
  throw InputError("sketch must be 'gaussian' or 'rademacher'; got '", name, "'");
}

template <class T>
Eigen::Map<Matrix<T>> out_matrix(py::array& a) {
  if (!py::isinstance<py::array_t<T, py::array::c_style>>(a) || a.ndim() != 2) {
    throw InputError("out must be a C-contiguous matrix");
  }
  return {static_cast<T*>(a.mutable_data()), a.shape(0), a.shape(1)};
}

}  // namespace

void bind_projection(py::module_& m) {
  py::class_<ProjectionOptions>(m, "ProjectionOptions")
      .def(py::init([](const std::string& sketch, std::uint64_t seed, double scale) {
    return ProjectionOptions{sketch_named(sketch), seed, scale};
  }),
           py::kw_only(), py::arg("sketch") = "rademacher", py::arg("seed") = 0,
           py::arg("scale") = 1.0);

  m.def("fill_sketch", [](py::array g, const std::string& kind, std::uint64_t seed, int threads) {
    const PythonRun run(threads);
    const Sketch sketch = sketch_named(kind);
    compute_in(holds_doubles(g), [&]<class T>() {
      const auto entries = out_matrix<T>(g);
      const py::gil_scoped_release release;
      fill_sketch<T>(sketch, seed, entries, run);
    });
  }, Standard(), py::arg("g"), py::arg("kind"), py::arg("seed"), py::arg("threads"));

  m.def("target_logits", [](const TargetArrays& target, const Tolerances& tolerances) {
    Array<double> b(target.columns.size());
    const std::span<double> out(b.mutable_data(), static_cast<std::size_t>(b.size()));
    on_target(target, 1, [&](const Target& view, const Run& run) {
      target_logits(view, tolerances, out, run);
    });
    return b;
  }, Standard(), py::arg("target"), py::arg("tolerances"));

  m.def("project_identity",
        [](const TargetArrays& target, const Tolerances& tolerances,
           const ProjectionOptions& options, py::array q, py::array k, int threads) {
    compute_in(holds_doubles(q), [&]<class T>() {
      const auto queries = out_matrix<T>(q), keys = out_matrix<T>(k);
      on_target(target, threads, [&](const Target& view, const Run& run) {
        project_identity<T>(view, tolerances, options, queries, keys, run);
      });
    });
  },
        Standard(), py::arg("target"), py::arg("tolerances"), py::arg("options"), py::arg("q"),
        py::arg("k"), py::arg("threads"));
}

}  // namespace headfit::python
