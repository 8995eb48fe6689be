#include "logits.hpp"

namespace headfit::python {

Mask MaskArrays::view() const {
  Mask m;
  m.left = left;
  m.right = right;
  if (dense) {
    m.dense = dense->data();
    m.dense_head = item_stride(*dense, 0);
    m.dense_row = item_stride(*dense, 1);
    m.dense_col = item_stride(*dense, 2);
  }
  if (sparse_offsets && sparse_columns) {
    m.sparse_offsets = sparse_offsets->data();
    m.sparse_columns = sparse_columns->data();
  }
  if (key_lengths) m.key_lengths = key_lengths->data();
  return m;
}

void bind_attention(py::module_& m) {
  py::class_<MaskArrays>(m, "Mask")
      .def(py::init([](std::optional<Index> left, std::optional<Index> right,
                       std::optional<Array<bool>> dense, std::optional<Array<Offset>> offsets,
                       std::optional<Array<Column>> columns,
                       std::optional<Array<Index>> key_lengths) {
             return MaskArrays{left, right, std::move(dense), std::move(offsets),
                               std::move(columns), std::move(key_lengths)};
           }),
           py::kw_only(), py::arg("left") = py::none(), py::arg("right") = py::none(),
           py::arg("dense") = py::none(), py::arg("sparse_offsets") = py::none(),
           py::arg("sparse_columns") = py::none(), py::arg("key_lengths") = py::none());

  py::class_<LogitArrays>(m, "Logits")
      .def(py::init([](py::array q, py::array k, Index group, double scale, double softcap,
                       const MaskArrays& mask, std::optional<py::array> bias,
                       std::optional<Array<Index>> rows, std::optional<py::array> rotary,
                       bool rotary_halves) {
             return LogitArrays{std::move(q),    std::move(k),    group,
                                scale,           softcap,         mask,
                                std::move(bias), std::move(rows), std::move(rotary),
                                rotary_halves};
           }),
           py::arg("q"), py::arg("k"), py::arg("group"), py::arg("scale"), py::arg("softcap"),
           py::arg("mask"), py::arg("bias") = py::none(), py::arg("rows") = py::none(),
           py::arg("rotary") = py::none(), py::arg("rotary_halves") = false);

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

  m.def("attention_topk", [](const LogitArrays& x, py::array columns, py::array values,
                             bool as_logits, int threads) {
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

  m.def("attention_stats", [](const LogitArrays& x, Array<double> shares, int threads) {
    const PythonRun run(threads);
    const std::vector<Index> shape{x.heads(), x.row_count()};
    Array<double> entropy(shape), max_weight(shape), log_sum(shape);
    Array<Offset> counts(std::vector<Index>{x.heads(), x.row_count(), shares.size()});
    const StatsOut out{entropy.mutable_data(), max_weight.mutable_data(), log_sum.mutable_data(),
                       counts.mutable_data(), span_of(shares)};
    compute_in(x.in_double(), [&]<class T>() {
      const LogitSource<T> source = x.view<T>();
      const py::gil_scoped_release release;
      attention_stats(source, out, run);
    });
    return py::make_tuple(entropy, max_weight, log_sum, counts);
  }, Standard(), py::arg("logits"), py::arg("shares"), py::arg("threads"));
}

}  // namespace headfit::python
