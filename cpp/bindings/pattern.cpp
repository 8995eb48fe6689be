#include "headfit/pattern/regular.hpp"
#include "logits.hpp"
#include "targets.hpp"

namespace headfit::python {

void bind_pattern(py::module_& m) {
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

  m.def("validate_target", [](const Array<Offset>& offsets, const Array<Column>& columns,
                              const Array<double>& weights, const MaskArrays& mask,
                              double sum_tolerance, int threads) {
    const Target target = target_of(offsets, columns, weights);
    const Mask view = mask.view();
    const PythonRun run(threads);
    TargetSummary s;
    {
      const py::gil_scoped_release release;
      s = validate_target(target, view, sum_tolerance, run);
    }
    return py::make_tuple(s.per_row, s.per_column, s.gamma);
  }, Standard(), py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("mask"),
     py::arg("sum_tolerance"), py::arg("threads"));
}

}  // namespace headfit::python
