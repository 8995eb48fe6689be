// The smallest head that finds the keys: maps, their fit, what they find and how good that is.
#include "formats.hpp"
#include "headfit/index/fit_index.hpp"
#include "headfit/index/judge.hpp"
#include "logits.hpp"

namespace headfit::python {
namespace {

// A group of heads in some passages, with the cosines and sines of positions.
struct IndexArrays {
  std::vector<LogitArrays> passages;
  std::optional<py::array> table;
  bool halves;
  Index reach, choosing;
  std::string name;

  IndexPassages view() const {
    IndexPassages group;
    group.name = name;
    for (const LogitArrays& passage : passages) group.passages.push_back(passage.view<float>());
    group.reach = reach;
    group.choosing = choosing;
    if (!table) return group;
    const Heads<float> angles = one_head<float>(*table, "the table of positions");
    if (passages.empty() || angles.rows <= reach || angles.cols != group.passages[0].q.cols) {
      throw InputError("the table of positions must have a row for each of them, of the head size");
    }
    group.positions = {std::get<const float*>(angles.data), 0, halves};
    return group;
  }
};

Matrix<float> maps_of(const py::array& maps) { return one_head<float>(maps, "maps")[0]; }

py::list fit_indexes_of(const std::vector<IndexArrays>& given, const std::vector<py::array>& starts,
                        const IndexOptions& options, const IndexDescent& descent,
                        const py::object& done, int threads) {
  const PythonRun run(threads);
  std::vector<IndexPassages> groups;
  std::vector<Matrix<float>> maps;
  for (const IndexArrays& group : given) groups.push_back(group.view());
  for (const py::array& start : starts) maps.push_back(maps_of(start));
  const auto report = loss_report<IndexResult>(done);
  std::vector<IndexResult> results;
  {
    const py::gil_scoped_release release;
    results = fit_indexes(groups, maps, options, descent, report, run);
  }
  py::list found;
  for (const IndexResult& r : results) {
    found.append(py::make_tuple(array_of(r.maps), r.start, r.loss, r.seconds));
  }
  return found;
}

py::tuple arrays_of(const IndexJudgement& judged) {
  return py::make_tuple(array_of(judged.kept), array_of(judged.free), array_of(judged.found),
                        array_of(judged.exact), array_of(judged.recall), array_of(judged.heaviest),
                        array_of(judged.seen));
}

py::tuple judge_index_of(const LogitArrays& passage, const py::array& maps,
                         const IndexOptions& options, Index keys, int threads) {
  const PythonRun run(threads);
  const LogitSource<float> source = passage.view<float>();
  const Matrix<float> at = maps_of(maps);
  IndexJudgement judged;
  {
    const py::gil_scoped_release release;
    judged = judge_index(source, at, options, keys, run);
  }
  return arrays_of(judged);
}

py::tuple judge_logits_of(const LogitArrays& passage, const LogitArrays& scored,
                          const IndexOptions& options, Index keys, int threads) {
  const PythonRun run(threads);
  const LogitSource<float> source = passage.view<float>(), other = scored.view<float>();
  IndexJudgement judged;
  {
    const py::gil_scoped_release release;
    judged = judge_logits(source, other, options.kept, keys, run);
  }
  return arrays_of(judged);
}

Array<double> gained_mass_of(const LogitArrays& passage, const py::array& maps,
                             const IndexOptions& options, Index keys, const py::array& selections,
                             int threads) {
  const PythonRun run(threads);
  const Array<Column> columns = vector_of<Column>(selections, "selections");
  const LogitSource<float> source = passage.view<float>();
  const Matrix<float> at = maps_of(maps);
  Vector<double> gained;
  {
    const py::gil_scoped_release release;
    gained = gained_mass(source, at, options, keys, span_of(columns), run);
  }
  return array_of(gained);
}

Array<Column> select_keys_of(const LogitArrays& passage, const py::array& maps,
                             const IndexOptions& options, Index keys, int threads) {
  const PythonRun run(threads);
  const LogitSource<float> source = passage.view<float>();
  const Matrix<float> at = maps_of(maps);
  Array<Column> found(std::vector<Index>{source.row_count(), keys});
  {
    const py::gil_scoped_release release;
    select_keys(source, at, options, keys, found.mutable_data(), run);
  }
  return found;
}

Array<float> score_keys_of(const LogitArrays& passage, const py::array& maps,
                           const IndexOptions& options, int threads) {
  const PythonRun run(threads);
  const LogitSource<float> source = passage.view<float>();
  const Matrix<float> at = maps_of(maps);
  Array<float> scores(std::vector<Index>{source.row_count(), source.k.rows});
  {
    const py::gil_scoped_release release;
    score_keys(source, at, options, scores.mutable_data(), run);
  }
  return scores;
}

py::tuple index_numbers_of(const LogitArrays& passage, const py::array& maps,
                           const IndexOptions& options, int threads) {
  const PythonRun run(threads);
  const LogitSource<float> source = passage.view<float>();
  const Matrix<float> at = maps_of(maps);
  IndexNumbers numbers;
  {
    const py::gil_scoped_release release;
    numbers = index_numbers(source, at, options, run);
  }
  return py::make_tuple(array_of(numbers.queries), array_of(numbers.keys));
}

// What is stored of keys of shape (key heads, m, D), and the scales of the rows.
py::tuple map_keys_of(const py::array& keys, const py::array& maps, const std::string& dtype) {
  Matrix<float> mapped;
  Vector<float> scales;
  const Heads<float> own = heads_of<float>(keys, "K");
  const Matrix<float> at = maps_of(maps);
  if (own.count * own.cols != at.rows()) throw InputError("maps must have rows for each key head");
  {
    const py::gil_scoped_release release;
    map_keys(own, at, IndexFormat(dtype), mapped, scales);
  }
  return py::make_tuple(array_of(mapped), array_of(scales));
}

}  // namespace

void bind_index(py::module_& m) {
  // `table`: for each position up to `reach` the cosines and then the sines of its angles; or None.
  py::class_<IndexArrays>(m, "IndexPassages")
      .def(py::init<std::vector<LogitArrays>, std::optional<py::array>, bool, Index, Index,
                    std::string>(),
           Standard(), py::arg("passages"), py::arg("table").none(true), py::arg("halves"),
           py::arg("reach"), py::arg("choosing"), py::arg("name"));
  py::class_<IndexOptions>(m, "IndexOptions")
      .def(py::init(
               [](const std::string& form, const std::string& dtype, Index first, Index window) {
    return IndexOptions{form_named(form), IndexFormat(dtype), {first, window}};
  }),
           Standard(), py::arg("form"), py::arg("dtype"), py::arg("first"), py::arg("window"));
  py::class_<IndexDescent>(m, "IndexDescent")
      .def(py::init([](Index steps, Index rows, std::uint64_t seed) {
    IndexDescent descent;
    descent.steps = steps;
    descent.rows = rows;
    descent.seed = seed;
    return descent;
  }),
           Standard(), py::arg("steps"), py::arg("rows"), py::arg("seed"));
  // For each group (maps, loss at the start, loss, seconds). done(group, loss) is called after each.
  m.def("fit_indexes", &fit_indexes_of, Standard(), py::arg("groups"), py::arg("starts"),
        py::arg("options"), py::arg("descent"), py::arg("done").none(true), py::arg("threads"));
  // The members of IndexJudgement, in their order.
  m.def("judge_index", &judge_index_of, Standard(), py::arg("passage"), py::arg("maps"),
        py::arg("options"), py::arg("keys"), py::arg("threads"));
  m.def("judge_logits", &judge_logits_of, Standard(), py::arg("passage"), py::arg("scored"),
        py::arg("options"), py::arg("keys"), py::arg("threads"));
  m.def("gained_mass", &gained_mass_of, Standard(), py::arg("passage"), py::arg("maps"),
        py::arg("options"), py::arg("keys"), py::arg("selections"), py::arg("threads"));
  m.def("select_keys", &select_keys_of, Standard(), py::arg("passage"), py::arg("maps"),
        py::arg("options"), py::arg("keys"), py::arg("threads"));
  m.def("score_keys", &score_keys_of, Standard(), py::arg("passage"), py::arg("maps"),
        py::arg("options"), py::arg("threads"));
  // The rounded queries, of one head below the other in the form "sum", and keys.
  m.def("index_numbers", &index_numbers_of, Standard(), py::arg("passage"), py::arg("maps"),
        py::arg("options"), py::arg("threads"));
  m.def("map_index_keys", &map_keys_of, Standard(), py::arg("keys"), py::arg("maps"),
        py::arg("dtype"));
}

}  // namespace headfit::python
