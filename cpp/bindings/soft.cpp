// Soft fits: heads close in KL divergence to a dense target.
#include "descents.hpp"
#include "headfit/soft/compare.hpp"
#include "headfit/soft/fit_soft.hpp"
#include "logits.hpp"

namespace headfit::python {
namespace {

StoredMatrix stored(const py::array& a) {
  if (a.ndim() != 2 || (a.size() > 0 && a.shape(1) > 1 && item_stride(a, 1) != 1)) {
    throw InputError("the target must be a matrix with contiguous rows");
  }
  return std::visit([&]<class T>(const T* first) -> StoredMatrix {
    return MatrixView<T>(first, a.shape(0), a.shape(1), RowStride(item_stride(a, 0)));
  }, stored_for<double>(a, "the target"));
}

// A dense target, attention or a matrix with its mask, and the arrays that it lies in.
struct SoftTargetArrays {
  std::optional<LogitArrays> attention;
  std::optional<py::array> matrix;
  MaskArrays mask;

  bool in_double() const { return attention ? attention->in_double() : holds_doubles(*matrix); }

  template <class T>
  SoftTarget<T> view() const {
    SoftTarget<T> target;
    if (attention) {
      target.attention = attention->view<T>();
    } else {
      target.matrix.emplace(stored(*matrix));
      target.mask = mask.checked_view(1, target.rows(), target.cols());
    }
    return target;
  }
};

py::object fit(const SoftTargetArrays& target, const MaskArrays& mask, const py::array& q,
               const py::array& k, const DescentArguments& arguments, int threads) {
  const PythonRun run(threads);
  return compute_in(target.in_double(), [&]<class T>() -> py::object {
    const SoftOptions<T> options{one_head<T>(q, "Q"), one_head<T>(k, "K"), arguments.view()};
    const SoftTarget<T> view = target.view<T>();
    const Mask allowed = mask.checked_view(1, view.rows(), view.cols());
    SoftResult<T> r;
    {
      const py::gil_scoped_release release;
      r = fit_soft<T>(view, allowed, options, run);
    }
    py::dict report;
    report["status"] = ending_of(r.status);
    report["steps"] = r.history.size() - 1;
    report["evaluations"] = r.evaluations;
    report["refreshes"] = r.refreshes;
    report["seconds"] = r.seconds;
    return py::make_tuple(array_of(r.q), array_of(r.k), array_of(r.history), report);
  });
}

py::object loss(const SoftTargetArrays& target, const MaskArrays& mask, const py::array& q,
                const py::array& k, int threads) {
  const PythonRun run(threads);
  return compute_in(target.in_double(), [&]<class T>() -> py::object {
    const SoftTarget<T> view = target.view<T>();
    const Mask allowed = mask.checked_view(1, view.rows(), view.cols());
    const Heads<T> queries = one_head<T>(q, "Q"), keys = one_head<T>(k, "K");
    SoftLoss<T> r;
    {
      const py::gil_scoped_release release;
      r = soft_loss<T>(view, allowed, queries, keys, run);
    }
    return py::make_tuple(r.loss, array_of(r.gradient), array_of(r.curvature));
  });
}

}  // namespace

void bind_soft(py::module_& m) {
  const DescentLimits usual;
  py::class_<SoftTargetArrays>(m, "SoftTarget")
      .def(py::init([](std::optional<LogitArrays> attention, std::optional<py::array> matrix,
                       std::optional<MaskArrays> mask) {
    if (attention.has_value() == matrix.has_value()) {
      throw InputError("a soft target is either attention or a matrix");
    }
    return SoftTargetArrays{std::move(attention), std::move(matrix), mask.value_or(MaskArrays{})};
  }),
           py::kw_only(), py::arg("attention") = py::none(), py::arg("matrix") = py::none(),
           py::arg("mask") = py::none());

  m.def("check_soft_target", [](const SoftTargetArrays& target, int threads) {
    const PythonRun run(threads);
    compute_in(target.in_double(), [&]<class T>() {
      const SoftTarget<T> view = target.view<T>();
      const py::gil_scoped_release release;
      check_soft_target(view, run);
    });
  }, Standard(), py::arg("target"), py::arg("threads"));

  // progress(step, mean divergence) returns False to stop.
  py::class_<DescentArguments>(m, "DescentLimits")
      .def(py::init([](Index max_steps, double tolerance, double enough, double time_limit,
                       py::object progress, Index window) {
    return DescentArguments{{max_steps, tolerance, enough, time_limit, {}, window},
                            std::move(progress)};
  }),
           py::kw_only(), py::arg("max_steps") = usual.max_steps,
           py::arg("tolerance") = usual.tolerance, py::arg("enough") = usual.enough,
           py::arg("time_limit") = usual.time_limit, py::arg("progress") = py::none(),
           py::arg("window") = usual.window);

  // (q, k, history, report)
  m.def("fit_soft", &fit, Standard(), py::arg("target"), py::arg("mask"), py::arg("q"),
        py::arg("k"), py::arg("limits"), py::arg("threads"));

  // (sum of divergences, gradient, lower triangles of the curvature), queries above keys.
  m.def("soft_loss", &loss, Standard(), py::arg("target"), py::arg("mask"), py::arg("q"),
        py::arg("k"), py::arg("threads"));

  // Per row, in double: (divergence, total variation, whether the target's row is not zero).
  m.def("compare_soft",
        [](const SoftTargetArrays& target, const LogitArrays& attention, int threads) {
    const PythonRun run(threads);
    const SoftTarget<double> view = target.view<double>();
    const LogitSource<double> source = attention.view<double>();
    std::optional<SoftDistances> rows;
    {
      const py::gil_scoped_release release;
      rows = compare_soft(view, source, run);
    }
    Array<bool> attends(static_cast<Index>(rows->attends.size()));
    std::copy(rows->attends.begin(), rows->attends.end(), attends.mutable_data());
    return py::make_tuple(array_of(rows->divergence), array_of(rows->variation), attends);
  }, Standard(), py::arg("target"), py::arg("attention"), py::arg("threads"));
}

}  // namespace headfit::python
