#include "headfit/projection/projection.hpp"

#include "formats.hpp"
#include "headfit/learned/fit_learned.hpp"
#include "headfit/max_margin/face_reports.hpp"
#include "headfit/max_margin/max_margin.hpp"
#include "logits.hpp"
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

// (row, terms, residual, gap, norm bound) with terms (kind, column, multiplier).
py::list witnesses_of(const MaxMarginRows& rows) {
  py::list all;
  for (std::size_t i = 0; i < rows.witness.size(); ++i) {
    const Witness& w = rows.witness[i];
    if (w.terms.empty()) continue;
    py::list terms;
    for (const Multiplier& t : w.terms) {
      terms.append(py::make_tuple(name_of(t.kind), t.column, t.value));
    }
    all.append(py::make_tuple(i, terms, w.residual, w.gap, w.norm_bound));
  }
  return all;
}

const char* name_of(LearnedStatus status) {
  switch (status) {
    case LearnedStatus::Met: return "met";
    case LearnedStatus::StepLimit: return "step limit";
    case LearnedStatus::TimeLimit: return "time limit";
    default: return "stopped";
  }
}

Heads<float> start_of(const py::array& a) {
  if (!py::isinstance<py::array_t<float, py::array::c_style>>(a) || a.ndim() != 2) {
    throw InputError("a start must be C-contiguous matrices of float32");
  }
  return {static_cast<const float*>(a.data()), 1, a.shape(0), a.shape(1), a.size(), a.shape(1)};
}
std::optional<Heads<float>> start_of(const std::optional<py::array>& a) {
  return a ? std::optional(start_of(*a)) : std::nullopt;
}

// Calls work(target, mask, run) with views of what Python gave, without the interpreter lock.
template <class F>
auto on_target(const Array<Offset>& offsets, const Array<Column>& columns,
               const Array<double>& weights, const MaskArrays& mask, int threads, const F& work) {
  const PythonRun run(threads);
  const Target target = target_of(offsets, columns, weights);
  const Mask view = mask.view();
  const py::gil_scoped_release release;
  return work(target, view, run);
}

Array<float> array_of(const Matrix<float>& x) {
  Array<float> a(std::vector<Index>{x.rows(), x.cols()});
  std::copy_n(x.data(), x.size(), a.mutable_data());
  return a;
}

py::dict report_of(const LearnedResult& r) {
  py::dict d;
  d["status"] = name_of(r.status);
  d["steps"] = r.steps;
  d["scans"] = r.scans;
  d["starts"] = r.starts;
  d["quenches"] = r.quenches;
  d["reheats"] = r.reheats;
  d["roundings"] = r.roundings;
  d["rows_left"] = Array<Index>(static_cast<Index>(r.failed_rows.size()), r.failed_rows.data());
  d["worst_deficit"] = r.worst_deficit;
  d["seconds"] = r.seconds;
  return d;
}

MatrixView<double> keys_of(const py::array& a) {
  if (!py::isinstance<py::array_t<double, py::array::c_style>>(a) || a.ndim() != 2) {
    throw InputError("keys must be a C-contiguous matrix of float64");
  }
  return {static_cast<const double*>(a.data()), a.shape(0), a.shape(1), RowStride(a.shape(1))};
}

}  // namespace

void bind_construct(py::module_& m) {
  // From now on, until it is called again: None is no limit.
  m.def("limit_calls", [](std::optional<double> seconds) {
    using Clock = std::chrono::steady_clock;
    constexpr double longest = 1e8;
    const auto now = Clock::now();
    call_deadline() = Clock::time_point::max();
    if (seconds && *seconds < longest) {
      const std::chrono::duration<double> left(*seconds);
      call_deadline() = now + std::chrono::duration_cast<Clock::duration>(left);
    }
  }, py::arg("seconds"));

  m.def("fill_sketch", [](py::array g, const std::string& kind, std::uint64_t seed, int threads) {
    const PythonRun run(threads);
    const Sketch sketch = sketch_named(kind);
    compute_in(holds_doubles(g), [&]<class T>() {
      const auto entries = matrix_of<T>(g);
      const py::gil_scoped_release release;
      fill_sketch<T>(sketch, seed, entries, run);
    });
  }, Standard(), py::arg("g"), py::arg("kind"), py::arg("seed"), py::arg("threads"));

  m.def("target_logits", [](const Array<Offset>& offsets, const Array<Column>& columns,
                            const Array<double>& weights, double leak, double distortion) {
    Array<double> b(columns.size());
    target_logits(target_of(offsets, columns, weights), leak, distortion,
                  {b.mutable_data(), static_cast<std::size_t>(b.size())});
    return b;
  }, Standard(), py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("leak"),
     py::arg("distortion"));

  m.def("project_identity", [](const Array<Offset>& offsets, const Array<Column>& columns,
                               const Array<double>& weights, double leak, double distortion,
                               const std::string& kind, std::uint64_t seed, double scale,
                               py::array q, py::array k, int threads) {
    const PythonRun run(threads);
    const Sketch sketch = sketch_named(kind);
    const Target target = target_of(offsets, columns, weights);
    compute_in(holds_doubles(q), [&]<class T>() {
      const auto queries = matrix_of<T>(q), keys = matrix_of<T>(k);
      const py::gil_scoped_release release;
      project_identity<T>(target, leak, distortion, sketch, seed, scale, queries, keys, run);
    });
  }, Standard(), py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("leak"),
     py::arg("distortion"), py::arg("kind"), py::arg("seed"), py::arg("scale"), py::arg("q"),
     py::arg("k"), py::arg("threads"));

  m.def("max_margin_queries", [](const Array<Offset>& offsets, const Array<Column>& columns,
                                 const Array<double>& weights, const py::array& keys,
                                 const MaskArrays& mask, double leak, double distortion,
                                 bool equality, double max_norm, int threads) {
    MaxMarginTask task{leak, distortion, equality ? RowForm::Equality : RowForm::Tolerance, {}};
    task.rows.max_norm = max_norm;
    const auto k = keys_of(keys);
    const MaxMarginRows rows = on_target(
        offsets, columns, weights, mask, threads,
        [&](const Target& target, const Mask& view, const Run& run) {
          return max_margin_queries(target, k, view, task, run);
        });
    Array<double> q(std::vector<Index>{rows.q.rows(), rows.q.cols()});
    std::copy_n(rows.q.data(), rows.q.size(), q.mutable_data());
    py::list status;
    for (const RowStatus s : rows.status) status.append(name_of(s));
    Array<double> norm(static_cast<Index>(rows.norm.size()));
    std::copy(rows.norm.begin(), rows.norm.end(), norm.mutable_data());
    return py::make_tuple(q, status, norm, witnesses_of(rows), rows.scans);
  }, Standard(), py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("keys"),
     py::arg("mask"),
     py::arg("leak"), py::arg("distortion"), py::arg("equality"), py::arg("max_norm"),
     py::arg("threads"));

  // (q, k, report). progress(step, rows left, worst deficit) returns False to stop.
  m.def("fit_learned", [](const Array<Offset>& offsets, const Array<Column>& columns,
                          const Array<double>& weights, const MaskArrays& mask, Index dim,
                          double leak, double distortion, std::uint64_t seed, Index first_hold,
                          Index max_steps, double time_limit, double max_norm, double max_logit,
                          const std::string& format, double query_unit,
                          const std::optional<py::array>& init_q,
                          const std::optional<py::array>& init_k, const py::object& progress,
                          int threads) {
    LearnedOptions options{.dim = dim, .leak = leak, .distortion = distortion, .seed = seed,
                           .first_hold = first_hold, .max_steps = max_steps,
                           .time_limit = time_limit, .max_norm = max_norm, .max_logit = max_logit,
                           .format = format_named(format), .query_unit = query_unit,
                           .init_q = start_of(init_q), .init_k = start_of(init_k), .progress = {}};
    if (!progress.is_none()) {
      options.progress = [&progress](const LearnedScan& scan) {
        const UserCode here;
        return progress(scan.step, scan.rows_left, scan.worst_deficit).cast<bool>();
      };
    }
    const LearnedResult result = on_target(
        offsets, columns, weights, mask, threads,
        [&](const Target& target, const Mask& view, const Run& run) {
          return fit_learned(target, view, options, run);
        });
    return py::make_tuple(array_of(result.q), array_of(result.k), report_of(result));
  }, Standard(), py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("mask"),
     py::arg("dim"),
     py::arg("leak"), py::arg("distortion"), py::arg("seed"), py::arg("first_hold"),
     py::arg("max_steps"), py::arg("time_limit"), py::arg("max_norm"), py::arg("max_logit"),
     py::arg("format"), py::arg("query_unit"), py::arg("init_q"), py::arg("init_k"),
     py::arg("progress"), py::arg("threads"));

  m.def("round_queries", [](const Array<Offset>& offsets, const Array<Column>& columns,
                            const Array<double>& weights, const MaskArrays& mask,
                            const py::array& q, const py::array& k, double leak, double distortion,
                            double max_logit, const std::string& format, double query_unit,
                            int threads) {
    const GivenHead head{start_of(q), start_of(k), leak, distortion, max_logit};
    const auto stored_in = format_named(format);
    if (!stored_in) throw InputError("rounding queries needs a format");
    return array_of(on_target(
        offsets, columns, weights, mask, threads,
        [&](const Target& target, const Mask& view, const Run& run) {
          return round_queries(target, view, head, *stored_in, query_unit, run);
        }));
  }, Standard(), py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("mask"),
     py::arg("q"),
     py::arg("k"), py::arg("leak"), py::arg("distortion"), py::arg("max_logit"), py::arg("format"),
     py::arg("query_unit"), py::arg("threads"));

  m.def("feasibility_loss", [](const Array<Offset>& offsets, const Array<Column>& columns,
                               const Array<double>& weights, const MaskArrays& mask,
                               const py::array& q, const py::array& k, double leak,
                               double distortion, double max_logit, int threads) {
    const GivenHead head{start_of(q), start_of(k), leak, distortion, max_logit};
    const LossGradient found = on_target(
        offsets, columns, weights, mask, threads,
        [&](const Target& target, const Mask& view, const Run& run) {
          return feasibility_loss(target, view, head, run);
        });
    return py::make_tuple(found.loss, array_of(found.q), array_of(found.k));
  }, Standard(), py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("mask"),
     py::arg("q"),
     py::arg("k"), py::arg("leak"), py::arg("distortion"), py::arg("max_logit"),
     py::arg("threads"));

  // For each row: (verdict, margin, inside, with_others, residual, others_weight, norm bound).
  m.def("face_reports", [](const Array<Offset>& offsets, const Array<Column>& columns,
                           const Array<double>& weights, py::array keys, const MaskArrays& mask,
                           const Array<Index>& rows, int threads) {
    const auto k = keys_of(keys);
    const auto wanted = span_of(rows);
    const std::vector<FaceReport> reports = on_target(
        offsets, columns, weights, mask, threads,
        [&](const Target& target, const Mask& view, const Run& run) {
          return face_reports(target, k, view, wanted, run);
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
  }, Standard(), py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("keys"),
     py::arg("mask"),
     py::arg("rows"), py::arg("threads"));
}

}  // namespace headfit::python
