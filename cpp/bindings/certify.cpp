// Certificates, and the error bounds that those of a module start from.
#include "headfit/certify/certificate.hpp"
#include "headfit/certify/operands.hpp"
#include "headfit/certify/selection.hpp"

#include "formats.hpp"
#include "targets.hpp"

namespace headfit::python {
namespace {

// The options of a certificate, with the arrays that its error bounds lie in.
struct CertifyArguments {
  std::optional<Array<double>> q_error;
  std::optional<Array<double>> k_error;
  Kernel kernel;
  bool mass;
  Passes passes;

  CertifyOptions view() const {
    return {{span_of(q_error), span_of(k_error)}, kernel, mass, passes};
  }
};

Passes passes_named(const std::string& name) {
  if (name == "both") return Passes::both;
  if (name == "first") return Passes::first;
  if (name == "in double") return Passes::in_double;
  throw InputError("scans must be both, first or in double; got ", name);
}

Array<std::int8_t> numbers_of(const std::vector<Verdict>& verdicts) {
  Array<std::int8_t> numbers(static_cast<Index>(verdicts.size()));
  std::transform(verdicts.begin(), verdicts.end(), numbers.mutable_data(),
                 [](Verdict v) { return static_cast<std::int8_t>(v); });
  return numbers;
}

py::dict as_dict(const CertificateRows& rows) {
  py::dict d;
  d["leak"] = array_of(rows.leak);
  d["distortion"] = array_of(rows.distortion);
  d["tv"] = array_of(rows.tv);
  d["stray"] = array_of(rows.stray);
  d["largest_logit"] = array_of(rows.largest_logit);
  d["verdict"] = numbers_of(rows.verdict);
  d["leak_column"] = array_of(rows.leak_column);
  d["weakest_column"] = array_of(rows.weakest_column);
  d["highest_column"] = array_of(rows.highest_column);
  d["lowest_column"] = array_of(rows.lowest_column);
  d["q_norm"] = rows.q_norm;
  d["k_norm"] = rows.k_norm;
  d["max_logit"] = rows.max_logit;
  d["rounding_bound"] = rows.rounding_bound;
  d["rescanned"] = rows.rescanned;
  return d;
}

py::dict certify_selection_of(const LogitArrays& logits, const py::array& q_index,
                              const py::array& k_index, const SelectionOptions& options,
                              bool with_columns, int threads) {
  const PythonRun run(threads);
  const Heads<float> queries = heads_of<float>(q_index, "Q_index");
  const Heads<float> keys = one_head<float>(k_index, "K_index");
  std::optional<Array<Column>> columns;
  if (with_columns) columns.emplace(std::vector<Index>{queries.rows, options.keys});
  Column* const to = columns ? columns->mutable_data() : nullptr;
  const SelectionRows rows = compute_in(logits.in_double(), [&]<class T>() {
    const LogitSource<T> source = logits.view<T>();
    const py::gil_scoped_release release;
    return certify_selection(source, queries, keys, options, to, run);
  });
  py::dict d;
  d["least"] = array_of(rows.least);
  d["most"] = array_of(rows.most);
  d["verdict"] = numbers_of(rows.verdict);
  d["sure"] = array_of(rows.sure);
  d["selected"] = array_of(rows.selected);
  d["rescanned"] = rows.rescanned;
  d["columns"] = columns;
  return d;
}

}  // namespace

void bind_certify(py::module_& m) {
  using Name = std::optional<std::string>;
  py::class_<Kernel>(m, "Kernel")
      .def(py::init([](bool float32, const Name& product, const Name& logits, const Name& bias,
                       const Name& weights, bool fused, int sum_bits) {
    return Kernel{float32,
                  format_named(product),
                  format_named(logits),
                  format_named(bias),
                  format_named(weights),
                  fused,
                  sum_bits};
  }),
           py::kw_only(), py::arg("float32") = false, py::arg("product") = py::none(),
           py::arg("logits") = py::none(), py::arg("bias") = py::none(),
           py::arg("weights") = py::none(), py::arg("fused") = false,
           py::arg("sum_bits") = float32_bits);
  py::class_<CertifyArguments>(m, "CertifyOptions")
      .def(py::init([](const std::optional<py::array>& q_error,
                       const std::optional<py::array>& k_error, const Kernel& kernel, bool mass,
                       const std::string& scans) {
    return CertifyArguments{vector_of<double>(q_error, "q_error"),
                            vector_of<double>(k_error, "k_error"), kernel, mass,
                            passes_named(scans)};
  }),
           py::kw_only(), py::arg("q_error") = py::none(), py::arg("k_error") = py::none(),
           py::arg("kernel") = Kernel{}, py::arg("mass") = false, py::arg("scans") = "both");

  m.def("certify_logits",
        [](const TargetArrays& target, const LogitArrays& logits, const Tolerances& tolerances,
           const CertifyArguments& options, int threads) {
    const PythonRun run(threads);
    const Target view = target.view();
    const CertifyOptions asked = options.view();
    const CertificateRows rows = compute_in(logits.in_double(), [&]<class T>() {
      const LogitSource<T> source = logits.view<T>();
      const py::gil_scoped_release release;
      return certify_logits(view, source, tolerances, asked, run);
    });
    return as_dict(rows);
  },
        Standard(), py::arg("target"), py::arg("logits"), py::arg("tolerances"), py::arg("options"),
        py::arg("threads"));

  m.def("certify_matrix",
        [](const TargetArrays& target, const py::array& matrix, const Tolerances& tolerances,
           int threads) {
    const PythonRun run(threads);
    const Target view = target.view();
    const CertificateRows rows = compute_in(holds_doubles(matrix), [&]<class T>() {
      const Heads<T> entries = heads_of<T>(matrix, "matrix");
      const py::gil_scoped_release release;
      return certify_matrix(view, entries, tolerances, run);
    });
    return as_dict(rows);
  },
        Standard(), py::arg("target"), py::arg("matrix"), py::arg("tolerances"),
        py::arg("threads"));

  m.def("certify_sparse_matrix",
        [](const TargetArrays& target, const CompressedArrays& matrix, const Tolerances& tolerances,
           int threads) {
    const CompressedRows entries = matrix.view();
    return as_dict(on_target(target, threads, [&](const Target& view, const PythonRun& run) {
      return certify_sparse_matrix(view, entries, tolerances, run);
    }));
  },
        Standard(), py::arg("target"), py::arg("matrix"), py::arg("tolerances"),
        py::arg("threads"));

  py::class_<SelectionOptions>(m, "SelectionOptions")
      .def(py::init([](Index keys, Index first, Index window, double mass, const std::string& form,
                       const Kernel& kernel) {
    return SelectionOptions{keys, first, window, mass, form_named(form), kernel};
  }),
           py::kw_only(), py::arg("keys"), py::arg("first"), py::arg("window"), py::arg("mass"),
           py::arg("form"), py::arg("kernel"));
  m.def("certify_selection", &certify_selection_of, Standard(), py::arg("logits"),
        py::arg("q_index"), py::arg("k_index"), py::arg("options"), py::arg("columns"),
        py::arg("threads"));

  m.def("operand_bounds",
        [](const py::array& x, const std::string& format, double factor, bool in_float32,
           double product_error) {
    const PythonRun run(1);
    const OperandRounding how{format_named(format), factor, in_float32, product_error};
    const std::vector<Index> shape{x.shape(0), x.shape(1)};
    Array<float> low(shape), high(shape);
    float* const to_low = low.mutable_data();
    float* const to_high = high.mutable_data();
    compute_in(holds_doubles(x), [&]<class T>() {
      const Heads<T> head = one_head<T>(x, "the operands");
      const py::gil_scoped_release release;
      const auto count = static_cast<std::size_t>(head.rows * head.cols);
      operand_bounds(std::span(std::get<const T*>(head.data), count), how, to_low, to_high);
    });
    return py::make_tuple(low, high);
  },
        Standard(), py::arg("x"), py::arg("format"), py::arg("factor"), py::arg("in_float32"),
        py::arg("product_error"));

  m.def("product_errors", [](const py::array& x, const py::array& w, const py::array& product) {
    const PythonRun run(1);
    const auto inputs = heads_of<double>(x, "X");
    const auto weights = heads_of<double>(w, "W");
    const auto products = heads_of<double>(product, "the product");
    const Vector<double> bounds = [&] {
      const py::gil_scoped_release release;
      return product_errors(inputs, weights, products);
    }();
    return array_of(bounds);
  }, Standard(), py::arg("x"), py::arg("w"), py::arg("product"));
}

}  // namespace headfit::python
