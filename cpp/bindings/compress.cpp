// Maps that make a head smaller for every input.
#include "headfit/compress/compress.hpp"
#include "descents.hpp"
#include "headfit/soft/compare.hpp"
#include "logits.hpp"

namespace headfit::python {
namespace {

template <class T>
std::vector<LogitSource<T>> views(const std::vector<LogitArrays>& heads) {
  std::vector<LogitSource<T>> sources;
  for (const LogitArrays& head : heads) sources.push_back(head.view<T>());
  return sources;
}

// The loss of maps over some passages, which are all computed with in one type. It keeps the arrays
// that its views point into.
struct CompressLossArrays {
  std::vector<LogitArrays> passages;
  std::variant<std::unique_ptr<CompressLoss<float>>, std::unique_ptr<CompressLoss<double>>> loss;

  CompressLossArrays(std::vector<LogitArrays> given, int threads) : passages(std::move(given)) {
    const PythonRun run(threads);
    const bool doubles = !passages.empty() && passages[0].in_double();
    for (const LogitArrays& passage : passages) {
      if (passage.in_double() != doubles) throw InputError("all passages must have one dtype");
    }
    compute_in(doubles, [&]<class T>() {
      const auto sources = views<T>(passages);
      const py::gil_scoped_release release;
      loss = std::make_unique<CompressLoss<T>>(std::span<const LogitSource<T>>(sources), run);
    });
  }
};

py::tuple loss_and_gradient(const CompressLossArrays& x, const py::array& maps, int threads) {
  const PythonRun run(threads);
  const Matrix<double> at = matrix_of(maps, "maps");
  Matrix<double> gradient;
  const double value = std::visit([&](const auto& loss) {
    const py::gil_scoped_release release;
    return loss->evaluate(at, &gradient, run);
  }, x.loss);
  return py::make_tuple(value, array_of(gradient));
}

double loss_of_maps(const CompressLossArrays& x, const py::array& maps, int threads) {
  const PythonRun run(threads);
  const Matrix<double> at = matrix_of(maps, "maps");
  return std::visit([&](const auto& loss) {
    const py::gil_scoped_release release;
    return loss->evaluate(at, nullptr, run);
  }, x.loss);
}

py::tuple moments_of(const CompressLossArrays& x) {
  return std::visit([](const auto& loss) {
    py::list queries;
    for (const Matrix<double>& q : loss->moments().queries) queries.append(array_of(q));
    return py::make_tuple(queries, array_of(loss->moments().keys));
  }, x.loss);
}

py::tuple key_moments_of(const CompressLossArrays& x) {
  return std::visit([](const auto& loss) {
    return py::make_tuple(array_of(loss->key_moments().plain),
                          array_of(loss->key_moments().centred));
  }, x.loss);
}

py::tuple fit_maps_of(const CompressLossArrays& x, const CompressLossArrays* judge,
                      const py::array& start, const DescentArguments& arguments, int threads) {
  const PythonRun run(threads);
  const CompressOptions options{matrix_of(start, "start"), arguments.view()};
  if (judge && judge->loss.index() != x.loss.index()) {
    throw InputError("all passages must have one dtype");
  }
  const CompressResult r = std::visit([&]<class L>(const std::unique_ptr<L>& loss) {
    const L* other = judge ? std::get<std::unique_ptr<L>>(judge->loss).get() : nullptr;
    const py::gil_scoped_release release;
    return fit_maps(*loss, other, options, run);
  }, x.loss);
  py::dict report;
  report["status"] = ending_of(r.status);
  report["steps"] = r.history.size() - 1;
  report["evaluations"] = r.evaluations;
  report["seconds"] = r.seconds;
  return py::make_tuple(array_of(r.maps), judge ? array_of(r.judged_maps) : array_of(r.maps),
                        array_of(r.history), report);
}

// Distances of all rows of all query heads, one after the other.
py::tuple compare_rows(const std::vector<LogitArrays>& originals,
                       const std::vector<LogitArrays>& smaller, int threads) {
  const PythonRun run(threads);
  const auto first = views<double>(originals), second = views<double>(smaller);
  std::vector<SoftDistances> found;
  {
    const py::gil_scoped_release release;
    found = compare_heads(first, second, run);
  }
  std::size_t rows = 0;
  for (const SoftDistances& part : found) rows += part.attends.size();
  Array<double> divergence(static_cast<Index>(rows)), variation(static_cast<Index>(rows));
  Array<bool> attends(static_cast<Index>(rows));
  Index at = 0;
  for (const SoftDistances& part : found) {
    std::copy(part.divergence.begin(), part.divergence.end(), divergence.mutable_data() + at);
    std::copy(part.variation.begin(), part.variation.end(), variation.mutable_data() + at);
    std::copy(part.attends.begin(), part.attends.end(), attends.mutable_data() + at);
    at += static_cast<Index>(part.attends.size());
  }
  return py::make_tuple(divergence, variation, attends);
}

}  // namespace

void bind_compress(py::module_& m) {
  // Maps are one float64 matrix: P_q of each query head, and below them P_k.
  py::class_<CompressLossArrays>(m, "CompressLoss")
      .def(py::init<std::vector<LogitArrays>, int>(), Standard(), py::arg("passages"),
           py::arg("threads"))
      // The mean divergence per row.
      .def("value", &loss_of_maps, Standard(), py::arg("maps"), py::arg("threads"))
      // (mean divergence, its gradient)
      .def("evaluate", &loss_and_gradient, Standard(), py::arg("maps"), py::arg("threads"))
      // (second moments of the queries of each query head, covariance of the attended keys)
      .def("moments", &moments_of)
      // (second moment of the keys that exist, the same of keys minus the mean of their passage)
      .def("key_moments", &key_moments_of)
      // (maps, maps that do best on the passages of `judge`, history, report)
      .def("fit", &fit_maps_of, Standard(), py::arg("judge").none(true), py::arg("start"),
           py::arg("limits"), py::arg("threads"));

  // Per row, in double: (divergence, total variation, whether the original's row is not zero).
  m.def("compare_heads", &compare_rows, Standard(), py::arg("originals"), py::arg("smaller"),
        py::arg("threads"));
}

}  // namespace headfit::python
