// Searches for lower bounds on the head size.
#include "headfit/lower/searches.hpp"
#include "headfit/lower/traces.hpp"
#include "targets.hpp"

namespace headfit::python {
namespace {

// Calls f with a checked table, without the interpreter lock.
template <class F>
Array<Column> on_table(const py::array& offsets, const py::array& columns, Index cols, F&& f) {
  const auto starts = vector_of<Offset>(offsets, "offsets");
  const auto stored = vector_of<Column>(columns, "columns");
  const SparseTable table{span_of(starts), span_of(stored), cols};
  const PythonRun run(1);
  std::vector<Column> result;
  {
    const py::gil_scoped_release release;
    table.check();
    result = f(table);
  }
  return array_of(result);
}

// A search, with the arrays that its target lies in.
struct BoundTraceSearch {
  TargetArrays arrays;
  Target target = arrays.view();
  std::optional<TraceSearch> search;

  BoundTraceSearch(const TargetArrays& of, bool of_columns, Offset pairs) : arrays(of) {
    const PythonRun run(1);
    const py::gil_scoped_release release;
    check_entries(target, run);
    search.emplace(target, of_columns, pairs);
  }
  BoundTraceSearch(const BoundTraceSearch&) = delete;

  // Calls f(search) without the interpreter lock.
  template <class F>
  auto call(F&& f) const {
    const PythonRun run(1);
    const py::gil_scoped_release release;
    return f(*search);
  }
};

using Columns = std::vector<Column>;

// Sets have their place in the search as their number.
const Columns& checked(const Columns& sets, const BoundTraceSearch& in) {
  for (const Column s : sets) {
    if (s < 0 || s >= in.target.n) throw InputError("sets must be columns or rows of the target");
  }
  return sets;
}

}  // namespace

void bind_lower(py::module_& m) {
  py::class_<BoundTraceSearch>(m, "TraceSearch")
      .def(py::init<const TargetArrays&, bool, Offset>(), Standard(), py::arg("target"),
           py::arg("of_columns"), py::arg("pairs"))
      .def_property_readonly("is_complete",
                             [](const BoundTraceSearch& x) { return x.search->is_complete(); })
      .def("shattered",
           [](const BoundTraceSearch& x, Index size) {
    if (size < 2 || size > 30) throw InputError("size must lie in 2 ... 30");
    return x.call([&](const TraceSearch& search) { return search.shattered(size); });
  }, Standard(), py::arg("size"))
      .def("near",
           [](const BoundTraceSearch& x, Column set) {
    checked({set}, x);
    return x.call([&](const TraceSearch& search) { return search.near(set); });
  }, Standard(), py::arg("set"))
      .def("classes_with",
           [](const BoundTraceSearch& x, const Columns& sets, const Columns& more, bool free) {
    checked(sets, x);
    checked(more, x);
    return x.call([&](const TraceSearch& s) { return s.classes_with(sets, more, free); });
  }, Standard(), py::arg("sets"), py::arg("more"), py::arg("free"))
      .def("points", [](const BoundTraceSearch& x, const Columns& sets, bool free) {
    checked(sets, x);
    return x.call([&](const TraceSearch& search) { return search.points(sets, free); });
  }, Standard(), py::arg("sets"), py::arg("free"));

  m.def("edge_shares", [](const py::array& offsets, const py::array& columns, Index cols) {
    return on_table(offsets, columns, cols, edge_shares);
  }, Standard(), py::arg("offsets"), py::arg("columns"), py::arg("cols"));

  m.def("columns_with_edges",
        [](const py::array& offsets, const py::array& columns, Index cols,
           const py::array& denominators, double price) {
    const auto shares = vector_of<Column>(denominators, "denominators");
    if (shares.size() + 1 != offsets.size()) {
      throw InputError("denominators must have one entry for each row");
    }
    return on_table(offsets, columns, cols, [&](const SparseTable& table) {
      return columns_with_edges(table, span_of(shares), price);
    });
  },
        Standard(), py::arg("offsets"), py::arg("columns"), py::arg("cols"),
        py::arg("denominators"), py::arg("price"));

  // (rows, columns); None where there is an order.
  m.def("order_conflict", [](const py::array& offsets, const py::array& columns, Index cols) {
    std::optional<OrderConflict> found;
    on_table(offsets, columns, cols, [&](const SparseTable& table) {
      found = order_conflict(table);
      return std::vector<Column>();
    });
    return found ? std::optional(std::pair(found->rows, found->columns)) : std::nullopt;
  }, Standard(), py::arg("offsets"), py::arg("columns"), py::arg("cols"));

  m.def("columns_apart", [](const TargetArrays& target, Index first, Index stop) {
    if (first < 0 || first > stop || stop > target.rows())
      throw InputError("columns must be those of the target");
    return on_target(target, 1, [&](const Target& view, const Run& run) {
      check_entries(view, run);
      return columns_apart(view, first, stop);
    });
  }, Standard(), py::arg("target"), py::arg("first"), py::arg("stop"));

  // Of a graph with as many nodes as there are rows.
  m.def("independent_nodes", [](const py::array& offsets, const py::array& columns) {
    return on_table(offsets, columns, offsets.size() - 1, independent_nodes);
  }, Standard(), py::arg("offsets"), py::arg("columns"));
  m.def("covering_nodes", [](const py::array& offsets, const py::array& columns) {
    return on_table(offsets, columns, offsets.size() - 1, covering_nodes);
  }, Standard(), py::arg("offsets"), py::arg("columns"));
}

}  // namespace headfit::python
