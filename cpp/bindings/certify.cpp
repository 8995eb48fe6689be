#include "headfit/certify/certificate.hpp"
#include "headfit/certify/product_errors.hpp"

#include "formats.hpp"
#include "logits.hpp"
#include "targets.hpp"

namespace headfit::python {
namespace {

template <class Source>
auto array_from(const Source& values) {
  using T = std::decay_t<decltype(values[0])>;
  Array<T> out(static_cast<Index>(values.size()));
  std::copy_n(values.data(), values.size(), out.mutable_data());
  return out;
}

py::dict as_dict(const CertificateRows& rows) {
  Array<std::int8_t> verdict(static_cast<Index>(rows.verdict.size()));
  std::transform(rows.verdict.begin(), rows.verdict.end(), verdict.mutable_data(),
                 [](Verdict v) { return static_cast<std::int8_t>(v); });
  py::dict d;
  d["leak"] = array_from(rows.leak);
  d["distortion"] = array_from(rows.distortion);
  d["tv"] = array_from(rows.tv);
  d["stray"] = array_from(rows.stray);
  d["verdict"] = verdict;
  d["leak_column"] = array_from(rows.leak_column);
  d["weakest_column"] = array_from(rows.weakest_column);
  d["highest_column"] = array_from(rows.highest_column);
  d["lowest_column"] = array_from(rows.lowest_column);
  d["q_norm"] = rows.q_norm;
  d["k_norm"] = rows.k_norm;
  d["max_logit"] = rows.max_logit;
  d["rounding_bound"] = rows.rounding_bound;
  d["rescanned"] = rows.rescanned;
  return d;
}

}  // namespace

void bind_certify(py::module_& m) {
  m.def("certify_logits", [](const Array<Offset>& offsets, const Array<Column>& columns,
                             const Array<double>& weights, const LogitArrays& logits,
                             const Array<double>& q_error, const Array<double>& k_error,
                             bool float32_accumulation, const std::string& logit_format,
                             double leak, double distortion, double max_logit, bool mass,
                             int threads) {
    const PythonRun run(threads);
    const Target target = target_of(offsets, columns, weights);
    const Reading reading{{span_of(q_error), span_of(k_error)}, float32_accumulation,
                          format_named(logit_format)};
    const CertificateRows rows = compute_in(logits.in_double(), [&]<class T>() {
      const LogitSource<T> source = logits.view<T>();
      const py::gil_scoped_release release;
      return certify_logits(target, source, reading, {leak, distortion, max_logit}, mass, run);
    });
    return as_dict(rows);
  }, Standard(), py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("logits"),
     py::arg("q_error"), py::arg("k_error"), py::arg("float32_accumulation"),
     py::arg("logit_format"), py::arg("leak"), py::arg("distortion"), py::arg("max_logit"),
     py::arg("mass"), py::arg("threads"));

  m.def("product_errors", [](const py::array& x, const py::array& w, const py::array& product) {
    const PythonRun run(1);
    const auto inputs = heads_of<double>(x, "X");
    const auto weights = heads_of<double>(w, "W");
    const auto products = heads_of<double>(product, "the product");
    const Vector<double> bounds = [&] {
      const py::gil_scoped_release release;
      return product_errors(inputs, weights, products);
    }();
    return array_from(bounds);
  }, Standard(), py::arg("x"), py::arg("w"), py::arg("product"));

  m.def("certify_matrix", [](const Array<Offset>& offsets, const Array<Column>& columns,
                             const Array<double>& weights, py::array matrix, const MaskArrays& mask,
                             double leak, double distortion, int threads) {
    const PythonRun run(threads);
    const Target target = target_of(offsets, columns, weights);
    const Mask view = mask.view();
    const CertificateRows rows = compute_in(holds_doubles(matrix), [&]<class T>() {
      const Heads<T> entries = heads_of<T>(matrix, "matrix");
      const py::gil_scoped_release release;
      return certify_matrix(target, entries, view, {leak, distortion}, run);
    });
    return as_dict(rows);
  }, Standard(), py::arg("offsets"), py::arg("columns"), py::arg("weights"), py::arg("matrix"),
     py::arg("mask"),
     py::arg("leak"), py::arg("distortion"), py::arg("threads"));
}

}  // namespace headfit::python
