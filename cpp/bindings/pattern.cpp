// Targets, the tolerances within which a head meets them, and random patterns.
#include "headfit/pattern/regular.hpp"
#include "headfit/pattern/target.hpp"
#include "targets.hpp"

namespace headfit::python {

void bind_pattern(py::module_& m) {
  constexpr Tolerances usual;
  py::class_<Tolerances>(m, "Tolerances")
      .def(py::init([](double leak, double distortion, double max_logit) {
    const Tolerances tolerances{leak, distortion, max_logit};
    tolerances.check();
    return tolerances;
  }),
           Standard(), py::arg("leak") = usual.leak, py::arg("distortion") = usual.distortion,
           py::arg("max_logit") = usual.max_logit)
      .def_readonly("leak", &Tolerances::leak)
      .def_readonly("distortion", &Tolerances::distortion)
      .def_readonly("max_logit", &Tolerances::max_logit);

  py::class_<TargetArrays>(m, "Target")
      .def(py::init([](const py::array& offsets, const py::array& columns, const py::array& weights,
                       std::optional<MaskArrays> mask) {
    TargetArrays target{vector_of<Offset>(offsets, "offsets"),
                        vector_of<Column>(columns, "columns"),
                        vector_of<double>(weights, "weights"), mask.value_or(MaskArrays{})};
    target.view();
    return target;
  }),
           py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("mask") = py::none())
      .def_readonly("offsets", &TargetArrays::offsets)
      .def_readonly("columns", &TargetArrays::columns)
      .def_readonly("weights", &TargetArrays::weights)
      .def_readonly("mask", &TargetArrays::mask);

  m.attr("SUM_TOLERANCE") = default_sum_tolerance;
  // (most nonzeros in a row, most nonzeros in a column, largest ratio within a row)
  m.def("validate_target", [](const TargetArrays& target, double sum_tolerance, int threads) {
    const TargetSummary s = on_target(target, threads, [&](const Target& view, const Run& run) {
      return validate_target(view, sum_tolerance, run);
    });
    return py::make_tuple(s.per_row, s.per_column, s.gamma);
  }, Standard(), py::arg("target"), py::arg("sum_tolerance"), py::arg("threads"));

  m.def("block_size", [](const TargetArrays& target, bool is_causal, int threads) {
    return on_target(target, threads, [&](const Target& view, const Run& run) {
      return block_size(view, is_causal, run);
    });
  }, Standard(), py::arg("target"), py::arg("is_causal"), py::arg("threads"));

  m.def("random_regular", [](Index n, Index k, std::uint64_t seed) {
    const PythonRun run(1);
    std::vector<Column> columns;
    {
      const py::gil_scoped_release release;
      columns = random_regular(n, k, seed);
    }
    Array<Column> out(std::vector<Index>{n, k});
    std::copy(columns.begin(), columns.end(), out.mutable_data());
    return out;
  }, Standard(), py::arg("n"), py::arg("k"), py::arg("seed"));
}

}  // namespace headfit::python
