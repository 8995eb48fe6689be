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

template <class T>
Array<T> copy_of(std::span<const T> x) {
  return array_of(std::vector<T>(x.begin(), x.end()));
}

// The arguments of a ScanRequest in Python.
py::dict as_dict(const ScanRequest& request) {
  py::dict d;
  d["q"] = array_of(Matrix<float>(request.q[0]));
  d["k"] = array_of(Matrix<float>(request.k[0]));
  d["hits"] = copy_of(request.hits);
  d["seed"] = request.sampling.seed;
  d["number"] = request.sampling.number;
  d["column_step"] = request.sampling.column_step;
  d["list_cap"] = request.list_cap;
  d["reserve"] = request.reserve;
  d["columns"] = copy_of(request.columns);
  d["listed"] = copy_of(request.listed);
  return d;
}

// What a scanner in Python has found: the arrays that scan_rows returns, of all rows.
ScannedRows scanned(const py::object& found, const ScanRequest& request) {
  const auto arrays = found.cast<std::array<py::array, 5>>();
  ScannedRows rows(0, request.q.rows, request.list_cap);
  const auto copy = [&]<class T>(std::size_t which, const char* name, std::vector<T>& to) {
    const Array<T> from = vector_of<T>(arrays[which], name);
    if (static_cast<std::size_t>(from.size()) != to.size()) {
      throw InputError(name, " of a scan must have ", to.size(), " entries; got ", from.size());
    }
    std::copy_n(from.data(), to.size(), to.begin());
  };
  copy(0, "columns", rows.columns);
  copy(1, "listed", rows.listed);
  copy(2, "hits", rows.hits);
  copy(3, "deficit", rows.deficit);
  copy(4, "rounding", rows.rounding);
  return rows;
}

// A request with the arrays that it refers to.
struct RequestArrays {
  py::array q, k;
  Array<Index> hits;
  Array<Column> columns;
  Array<Index> listed;
  ScanRequest numbers;

  ScanRequest view(const Tolerances& tolerances) const {
    ScanRequest all = numbers;
    all.tolerances = tolerances;
    all.q = one_head<float>(q, "Q");
    all.k = one_head<float>(k, "K");
    all.hits = span_of(hits);
    all.columns = span_of(columns);
    all.listed = span_of(listed);
    all.sampling.keep = !all.columns.empty() || !all.listed.empty();
    return all;
  }
};

GivenHead head_of(const py::array& q, const py::array& k) {
  return {one_head<float>(q, "Q"), one_head<float>(k, "K")};
}

// The options of a fit, with the arrays and the Python functions that they refer to.
struct LearnedArguments {
  LearnedOptions options;
  std::optional<std::pair<py::array, py::array>> start;
  py::object scanner;
  py::object progress;

  LearnedOptions view() const {
    LearnedOptions all = options;
    if (start) {
      all.start = GivenHead{one_head<float>(start->first, "start: Q"),
                            one_head<float>(start->second, "start: K")};
    }
    if (!scanner.is_none()) {
      all.scanner = [this](const ScanRequest& request) {
        const UserCode here;
        const Tolerances& asked = request.tolerances;
        const auto numbers = py::make_tuple(asked.leak, asked.distortion, asked.max_logit);
        return scanned(scanner(numbers, as_dict(request)), request);
      };
    }
    if (!progress.is_none()) {
      all.progress = [this](const LearnedProgress& now) {
        const UserCode here;
        return progress(now.step, now.rows_left, now.worst_deficit).cast<bool>();
      };
    }
    return all;
  }
};

py::dict report_of(const LearnedResult& r) {
  py::dict d;
  d["status"] = name_of(r.status);
  d["steps"] = r.steps;
  d["scans"] = r.scans;
  d["starts"] = r.starts;
  d["quenches"] = r.quenches;
  d["reheats"] = r.reheats;
  d["roundings"] = r.roundings;
  d["restarts"] = r.restarts;
  d["failed_rows"] = array_of(r.failed_rows);
  d["rows_left"] = static_cast<Index>(r.failed_rows.size()) + r.polished;
  d["rows_polished"] = r.polished;
  d["worst_deficit"] = r.worst_deficit;
  d["seconds"] = r.seconds;
  return d;
}

void bind_options(py::module_& m) {
  const LearnedOptions usual;
  py::class_<Storage>(m, "Storage")
      .def(py::init([](const std::string& format, double query_unit, double max_norm) {
    return Storage{format_named(format), query_unit, max_norm};
  }),
           py::arg("format"), py::arg("query_unit") = 1.0, py::arg("max_norm") = 0.0);

  // progress(step, rows left, worst deficit) returns False to stop.
  py::class_<LearnedArguments>(m, "LearnedOptions")
      .def(py::init([](Index dim, std::uint64_t seed, Index first_hold, Index max_steps,
                       Index most_reheats, double time_limit, double max_norm,
                       std::optional<Storage> storage,
                       std::optional<std::pair<py::array, py::array>> start, Index warm_steps,
                       std::vector<Tolerances> looser, Index stage_steps, double polished_share,
                       Index many_rows_from, py::object scanner, py::object progress) {
    LearnedOptions options;
    options.dim = dim;
    options.seed = seed;
    options.first_hold = first_hold;
    options.max_steps = max_steps;
    options.most_reheats = most_reheats;
    options.time_limit = time_limit;
    options.max_norm = max_norm;
    options.storage = storage;
    options.warm_steps = warm_steps;
    options.looser = std::move(looser);
    options.stage_steps = stage_steps;
    options.polished_share = polished_share;
    options.many_rows_from = many_rows_from;
    return LearnedArguments{std::move(options), std::move(start), std::move(scanner),
                            std::move(progress)};
  }),
           py::kw_only(), py::arg("dim"), py::arg("seed") = usual.seed,
           py::arg("first_hold") = usual.first_hold, py::arg("max_steps") = usual.max_steps,
           py::arg("most_reheats") = usual.most_reheats, py::arg("time_limit") = usual.time_limit,
           py::arg("max_norm") = usual.max_norm, py::arg("storage") = py::none(),
           py::arg("start") = py::none(), py::arg("warm_steps") = usual.warm_steps,
           py::arg("looser") = usual.looser, py::arg("stage_steps") = usual.stage_steps,
           py::arg("polished_share") = usual.polished_share,
           py::arg("many_rows_from") = usual.many_rows_from, py::arg("scanner") = py::none(),
           py::arg("progress") = py::none());
}

void bind_scans(py::module_& m) {
  py::class_<RequestArrays>(m, "ScanRequest")
      .def(py::init([](py::array q, py::array k, const py::array& hits, std::uint64_t seed,
                       Index number, Index column_step, int list_cap, float reserve,
                       const py::array& columns, const py::array& listed) {
    ScanRequest numbers;
    numbers.sampling = {seed, number, column_step};
    numbers.list_cap = list_cap;
    numbers.reserve = reserve;
    return RequestArrays{std::move(q),
                         std::move(k),
                         vector_of<Index>(hits, "hits"),
                         vector_of<Column>(columns, "columns"),
                         vector_of<Index>(listed, "listed"),
                         numbers};
  }),
           py::kw_only(), py::arg("q"), py::arg("k"), py::arg("hits"), py::arg("seed"),
           py::arg("number"), py::arg("column_step"), py::arg("list_cap"), py::arg("reserve"),
           py::arg("columns"), py::arg("listed"));

  // (columns, listed, hits, deficit, rounding) of the rows from `first` to `end` - 1; list_cap
  // columns for each.
  m.def("scan_rows",
        [](const TargetArrays& target, const Tolerances& tolerances, const RequestArrays& request,
           Index first, Index end, int threads) {
    const ScanRequest asked = request.view(tolerances);
    const ScannedRows found = on_target(target, threads, [&](const Target& view, const Run& run) {
      return scan_rows(view, asked, first, end, run);
    });
    return py::make_tuple(array_of(found.columns), array_of(found.listed), array_of(found.hits),
                          array_of(found.deficit), array_of(found.rounding));
  },
        Standard(), py::arg("target"), py::arg("tolerances"), py::arg("request"), py::arg("first"),
        py::arg("end"), py::arg("threads"));
}

void bind_fits(py::module_& m) {
  m.def("memory_of_fit", &memory_of_fit, py::arg("n"), py::arg("k"), py::arg("dim"));

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
}

void bind_queries(py::module_& m) {
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

  py::class_<NarrowOptions>(m, "NarrowOptions")
      .def(py::init([](const Tolerances& stored, const Tolerances& rounded,
                       std::vector<Tolerances> less, std::vector<Tolerances> more,
                       const Storage& storage, double max_norm) {
    return NarrowOptions{stored, rounded, std::move(less), std::move(more), storage, max_norm};
  }),
           py::kw_only(), py::arg("stored"), py::arg("rounded"), py::arg("less"), py::arg("more"),
           py::arg("storage"), py::arg("max_norm") = 0.0);

  // (q, failed rows, whether every row has a query for the keys)
  m.def("narrow_queries",
        [](const TargetArrays& target, const py::array& q, const py::array& k,
           const NarrowOptions& options, int threads) {
    const GivenHead head = head_of(q, k);
    const NarrowQueries found = on_target(target, threads, [&](const Target& view, const Run& run) {
      return narrow_queries(view, options, head, run);
    });
    return py::make_tuple(array_of(found.q), array_of(found.failed_rows), found.fit);
  },
        Standard(), py::arg("target"), py::arg("q"), py::arg("k"), py::arg("options"),
        py::arg("threads"));
}

}  // namespace

void bind_learned(py::module_& m) {
  bind_options(m);
  bind_scans(m);
  bind_fits(m);
  bind_queries(m);
}

}  // namespace headfit::python
