// The max-margin method, and the reports on rows that it fails.
#include "headfit/max_margin/max_margin.hpp"

#include "targets.hpp"

namespace headfit::python {
namespace {

const char* name_of(RowStatus status) {
  switch (status) {
    case RowStatus::Optimal: return "optimal";
    case RowStatus::Infeasible: return "infeasible";
    case RowStatus::NormLimit: return "norm limit";
    case RowStatus::IterationLimit: return "iteration limit";
    default: return "stalled";
  }
}

const char* name_of(ConstraintKind kind) {
  switch (kind) {
    case ConstraintKind::RatioUpper: return "ratio upper";
    case ConstraintKind::RatioLower: return "ratio lower";
    case ConstraintKind::Margin: return "margin";
    case ConstraintKind::Outside: return "outside";
    default: return "ratio equal";
  }
}

// A tuple (row, terms, residual, gap, norm bound) for each witness; terms are tuples (kind, column,
// multiplier).
py::list witnesses_of(const MaxMarginRows& rows, const std::optional<Array<Index>>& numbers) {
  py::list all;
  for (std::size_t i = 0; i < rows.witness.size(); ++i) {
    const Witness& w = rows.witness[i];
    if (w.terms.empty()) continue;
    py::list terms;
    for (const Multiplier& t : w.terms) {
      terms.append(py::make_tuple(name_of(t.kind), t.column, t.value));
    }
    const auto row = numbers ? numbers->data()[i] : static_cast<Index>(i);
    all.append(py::make_tuple(row, terms, w.residual, w.gap, w.norm_bound));
  }
  return all;
}

MatrixView<double> keys_of(const py::array& a) {
  if (!py::isinstance<py::array_t<double, py::array::c_style>>(a) || a.ndim() != 2) {
    throw InputError("keys must be a C-contiguous matrix of float64");
  }
  return {static_cast<const double*>(a.data()), a.shape(0), a.shape(1), RowStride(a.shape(1))};
}

}  // namespace

void bind_max_margin(py::module_& m) {
  py::class_<MaxMarginOptions>(m, "MaxMarginOptions")
      .def(py::init([](bool equality, double max_norm) {
    MaxMarginOptions options{equality ? RowForm::Equality : RowForm::Tolerance};
    options.rows.max_norm = max_norm;
    return options;
  }),
           py::kw_only(), py::arg("equality") = false,
           py::arg("max_norm") = std::numeric_limits<double>::infinity());

  // (queries, status of each row, norm of each row, witnesses, scans); of some rows where `rows`
  // says which.
  m.def("max_margin_queries",
        [](const TargetArrays& target, const py::array& keys, const Tolerances& tolerances,
           const MaxMarginOptions& options, int threads, const std::optional<py::array>& rows) {
    const auto k = keys_of(keys);
    const std::optional<Array<Index>> numbers = vector_of<Index>(rows, "rows");
    const MaxMarginRows solved =
        on_target(target, threads, [&](const Target& view, const Run& run) {
      if (!numbers) return max_margin_queries(view, k, tolerances, options, run);
      return max_margin_queries(view, span_of(*numbers), k, tolerances, options, run);
    });
    py::list status;
    for (const RowStatus s : solved.status) status.append(name_of(s));
    return py::make_tuple(array_of(solved.q), status, array_of(solved.norm),
                          witnesses_of(solved, numbers), solved.scans);
  },
        Standard(), py::arg("target"), py::arg("keys"), py::arg("tolerances"), py::arg("options"),
        py::arg("threads"), py::arg("rows") = py::none());

  // For each row: (verdict, margin, inside, with_others, residual, others_weight, norm bound).
  m.def("face_reports",
        [](const TargetArrays& target, const py::array& keys, const py::array& rows, int threads) {
    const auto k = keys_of(keys);
    const Array<Index> numbers = vector_of<Index>(rows, "rows");
    const auto wanted = span_of(numbers);
    const std::vector<FaceReport> reports =
        on_target(target, threads, [&](const Target& view, const Run& run) {
      return face_reports(view, k, wanted, run);
    });
    const auto terms = [](const std::vector<ConvexTerm>& combination) {
      py::list out;
      for (const ConvexTerm& t : combination) out.append(py::make_tuple(t.column, t.weight));
      return out;
    };
    py::list out;
    for (const FaceReport& r : reports) {
      const char* verdict = r.verdict == FaceVerdict::Face      ? "face"
                            : r.verdict == FaceVerdict::NotFace ? "not a face"
                                                                : "undecided";
      out.append(py::make_tuple(verdict, r.margin, terms(r.inside), terms(r.with_others),
                                r.residual, r.others_weight, r.norm_bound));
    }
    return out;
  }, Standard(), py::arg("target"), py::arg("keys"), py::arg("rows"), py::arg("threads"));
}

}  // namespace headfit::python
