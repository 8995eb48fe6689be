// Plain questions about attention: its matrix, products, largest entries and statistics.
#include "logits.hpp"

namespace headfit::python {

void bind_attention(py::module_& m) {
  m.def("attention_logits", [](const LogitArrays& x, py::array out, int threads) {
    const PythonRun run(threads);
    compute_in(x.in_double(), [&]<class T>() {
      const LogitSource<T> source = x.view<T>();
      const OutHeads<T> to = out_of<T>(out, x.heads(), x.row_count(), x.cols());
      const py::gil_scoped_release release;
      attention_logits(source, to, run);
    });
  }, Standard(), py::arg("logits"), py::arg("out"), py::arg("threads"));

  m.def("attention_matrix", [](const LogitArrays& x, py::array out, bool is_fresh, int threads) {
    const PythonRun run(threads);
    compute_in(x.in_double(), [&]<class T>() {
      const LogitSource<T> source = x.view<T>();
      OutHeads<T> to = out_of<T>(out, x.heads(), x.row_count(), x.cols());
      to.is_fresh = is_fresh;
      const py::gil_scoped_release release;
      attention_matrix(source, to, run);
    });
  }, Standard(), py::arg("logits"), py::arg("out"), py::arg("is_fresh"), py::arg("threads"));

  // Returns an array (heads, entries) of what stands at the entries of a sparse mask.
  m.def("attention_entries", [](const LogitArrays& x, bool as_logits, int threads) {
    const PythonRun run(threads);
    py::array result;
    compute_in(x.in_double(), [&]<class T>() {
      const LogitSource<T> source = x.view<T>();
      Array<T> out(std::vector<Index>{x.heads(), entry_starts(source).back()});
      T* to = out.mutable_data();
      const auto what = as_logits ? EntryValues::logits : EntryValues::weights;
      {
        const py::gil_scoped_release release;
        attention_entries(source, what, to, run);
      }
      result = out;
    });
    return result;
  }, Standard(), py::arg("logits"), py::arg("as_logits"), py::arg("threads"));

  m.def("attention_topk",
        [](const LogitArrays& x, py::array columns, py::array values, bool as_logits, int threads) {
    const PythonRun run(threads);
    compute_in(x.in_double(), [&]<class T>() {
      const Index k = columns.shape(2);
      const LogitSource<T> source = x.view<T>();
      const auto which = out_of<Offset>(columns, x.heads(), x.row_count(), k);
      const OutHeads<T> to = out_of<T>(values, x.heads(), x.row_count(), k);
      const py::gil_scoped_release release;
      if (as_logits) {
        attention_topk_logits(source, k, which, to, run);
      } else {
        attention_topk(source, k, which, to, run);
      }
    });
  }, Standard(), py::arg("logits"), py::arg("columns"), py::arg("values"), py::arg("as_logits"),
        py::arg("threads"));

  m.def("attention_apply", [](const LogitArrays& x, py::array v, py::array out, int threads) {
    const PythonRun run(threads);
    compute_in(x.in_double(), [&]<class T>() {
      const LogitSource<T> source = x.view<T>();
      const Heads<T> values = heads_of<T>(v, "V");
      const OutHeads<T> to = out_of<T>(out, x.heads(), x.row_count(), values.cols);
      const py::gil_scoped_release release;
      attention_apply(source, values, to, run);
    });
  }, Standard(), py::arg("logits"), py::arg("v"), py::arg("out"), py::arg("threads"));

  m.def("attention_stats", [](const LogitArrays& x, const py::array& given, int threads) {
    const PythonRun run(threads);
    const Array<double> shares = vector_of<double>(given, "shares");
    const std::vector<Index> shape{x.heads(), x.row_count()};
    Array<double> entropy(shape), max_weight(shape), log_sum(shape), key_mass(shape);
    Array<Offset> counts(std::vector<Index>{x.heads(), x.row_count(), shares.size()});
    const StatsOut out{entropy.mutable_data(), max_weight.mutable_data(), log_sum.mutable_data(),
                       counts.mutable_data(),  span_of(shares),           key_mass.mutable_data()};
    compute_in(x.in_double(), [&]<class T>() {
      const LogitSource<T> source = x.view<T>();
      const py::gil_scoped_release release;
      attention_stats(source, out, run);
    });
    return py::make_tuple(entropy, max_weight, log_sum, counts, key_mass);
  }, Standard(), py::arg("logits"), py::arg("shares"), py::arg("threads"));
}

}  // namespace headfit::python
