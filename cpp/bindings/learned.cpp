// The learned method.
#include "headfit/learned/fit_learned.hpp"

#include "formats.hpp"
#include "targets.hpp"

namespace headfit::python {
namespace {

const char* name_of(LearnedStatus status) {
  switch (status) {
    case LearnedStatus::Met: return "met";
    case LearnedStatus::StepLimit: return "step limit";
    case LearnedStatus::TimeLimit: return "time limit";
    default: return "stopped";
  }
}

// The options of a fit, with the arrays and the Python function that they refer to.
struct LearnedArguments {
  LearnedOptions options;
  std::optional<std::pair<py::array, py::array>> start;
  py::object progress;

  LearnedOptions view() const {
    LearnedOptions all = options;
    if (start) {
      all.init_q = one_head<float>(start->first, "start: Q");
      all.init_k = one_head<float>(start->second, "start: K");
    }
    if (!progress.is_none()) {
      all.progress = [this](const LearnedScan& scan) {
        const UserCode here;
        return progress(scan.step, scan.rows_left, scan.worst_deficit).cast<bool>();
      };
    }
    return all;
  }
};

GivenHead head_of(const py::array& q, const py::array& k) {
  return {one_head<float>(q, "Q"), one_head<float>(k, "K")};
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
  d["rows_left"] = array_of(r.failed_rows);
  d["worst_deficit"] = r.worst_deficit;
  d["seconds"] = r.seconds;
  return d;
}

}  // namespace

void bind_learned(py::module_& m) {
  const LearnedOptions usual;
  py::class_<Storage>(m, "Storage")
      .def(py::init([](const std::string& format, double query_unit) {
    return Storage{format_named(format), query_unit};
  }),
           py::arg("format"), py::arg("query_unit") = 1.0);

  // progress(step, rows left, worst deficit) returns False to stop.
  py::class_<LearnedArguments>(m, "LearnedOptions")
      .def(py::init([](Index dim, std::uint64_t seed, Index first_hold, Index max_steps,
                       double time_limit, double max_norm, std::optional<Storage> storage,
                       std::optional<std::pair<py::array, py::array>> start, Index warm_steps,
                       py::object progress) {
    LearnedOptions options;
    options.dim = dim;
    options.seed = seed;
    options.first_hold = first_hold;
    options.max_steps = max_steps;
    options.time_limit = time_limit;
    options.max_norm = max_norm;
    options.storage = storage;
    options.warm_steps = warm_steps;
    return LearnedArguments{std::move(options), std::move(start), std::move(progress)};
  }),
           py::kw_only(), py::arg("dim"), py::arg("seed") = usual.seed,
           py::arg("first_hold") = usual.first_hold, py::arg("max_steps") = usual.max_steps,
           py::arg("time_limit") = usual.time_limit, py::arg("max_norm") = usual.max_norm,
           py::arg("storage") = py::none(), py::arg("start") = py::none(),
           py::arg("warm_steps") = usual.warm_steps, py::arg("progress") = py::none());

  // (q, k, report)
  m.def("fit_learned",
        [](const TargetArrays& target, const Tolerances& tolerances,
           const LearnedArguments& options, int threads) {
    const LearnedOptions asked = options.view();
    const LearnedResult result =
        on_target(target, threads, [&](const Target& view, const Run& run) {
      return fit_learned(view, tolerances, asked, run);
    });
    return py::make_tuple(array_of(result.q), array_of(result.k), report_of(result));
  },
        Standard(), py::arg("target"), py::arg("tolerances"), py::arg("options"),
        py::arg("threads"));

  m.def("round_queries",
        [](const TargetArrays& target, const py::array& q, const py::array& k,
           const Tolerances& tolerances, const Storage& storage, int threads) {
    const GivenHead head = head_of(q, k);
    return array_of(on_target(target, threads, [&](const Target& view, const Run& run) {
      return round_queries(view, tolerances, head, storage, run);
    }));
  },
        Standard(), py::arg("target"), py::arg("q"), py::arg("k"), py::arg("tolerances"),
        py::arg("storage"), py::arg("threads"));

  // (loss, gradient of q, gradient of k)
  m.def("feasibility_loss",
        [](const TargetArrays& target, const py::array& q, const py::array& k,
           const Tolerances& tolerances, int threads) {
    const GivenHead head = head_of(q, k);
    const LossGradient found = on_target(target, threads, [&](const Target& view, const Run& run) {
      return feasibility_loss(view, tolerances, head, run);
    });
    return py::make_tuple(found.loss, array_of(found.q), array_of(found.k));
  },
        Standard(), py::arg("target"), py::arg("q"), py::arg("k"), py::arg("tolerances"),
        py::arg("threads"));
}

}  // namespace headfit::python
