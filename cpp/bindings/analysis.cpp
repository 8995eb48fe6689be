// What the attention of a head looks like: its profile, the squares of its weights, and the factors
// behind its spectrum.
#include "headfit/analysis/profile.hpp"

#include "headfit/analysis/squared_mass.hpp"
#include "headfit/analysis/triangular_factors.hpp"
#include "logits.hpp"

namespace headfit::python {

void bind_analysis(py::module_& m) {
  m.def("head_profile",
        [](const LogitArrays& x, Index per_row, double share, const py::array& given,
           const std::optional<py::array>& tokens, int threads) {
    const PythonRun run(threads);
    const Index heads = x.heads(), n = x.row_count(), cols = x.cols();
    if (tokens && (!py::isinstance<Array<Offset>>(*tokens) || tokens->ndim() != 2 ||
                   tokens->shape(0) != heads || tokens->shape(1) != n ||
                   (n > 1 && item_stride(*tokens, 1) != 1))) {
      throw InputError("tokens must have one contiguous row of int64 for each head");
    }
    const Array<double> shares = vector_of<double>(given, "shares");
    const std::vector<Index> rows{heads, n}, columns{heads, cols};
    Array<double> entropy(rows), key_mass(rows), top_mass(rows), log_gamma(rows), induction(rows),
        column_mass(columns);
    Array<double> offset_mass(std::vector<Index>{heads, std::max<Index>(0, n + cols - 1)});
    Array<Offset> kept(rows), load(columns);
    Array<Offset> keys(std::vector<Index>{heads, n, shares.size()});
    ProfileOptions options{per_row, share, nullptr, 0};
    if (tokens) {
      options.tokens = static_cast<const Offset*>(tokens->data());
      options.token_head_stride = item_stride(*tokens, 0);
    }
    const ProfileOut out{top_mass.mutable_data(),
                         log_gamma.mutable_data(),
                         kept.mutable_data(),
                         tokens ? induction.mutable_data() : nullptr,
                         load.mutable_data(),
                         column_mass.mutable_data(),
                         offset_mass.mutable_data(),
                         {entropy.mutable_data(), nullptr, nullptr, keys.mutable_data(),
                          span_of(shares), key_mass.mutable_data()}};
    compute_in(x.in_double(), [&]<class T>() {
      const LogitSource<T> source = x.view<T>();
      const py::gil_scoped_release release;
      head_profile(source, options, out, run);
    });
    py::dict d;
    d["keys"] = keys;
    d["entropy"] = entropy;
    d["key_mass"] = key_mass;
    d["top_mass"] = top_mass;
    d["log_gamma"] = log_gamma;
    d["kept"] = kept;
    if (tokens) d["induction"] = induction;
    d["load"] = load;
    d["column_mass"] = column_mass;
    d["offset_mass"] = offset_mass;
    return d;
  },
        Standard(), py::arg("logits"), py::arg("per_row"), py::arg("share"), py::arg("shares"),
        py::arg("tokens"), py::arg("threads"));

  // The sum over rows of the squared weight of each key, shape (heads, m).
  m.def("squared_mass", [](const LogitArrays& x, int threads) {
    const PythonRun run(threads);
    Array<double> out(std::vector<Index>{x.heads(), x.cols()});
    compute_in(x.in_double(), [&]<class T>() {
      const LogitSource<T> source = x.view<T>();
      double* sums = out.mutable_data();
      const py::gil_scoped_release release;
      squared_mass(source, sums, run);
    });
    return out;
  }, Standard(), py::arg("logits"), py::arg("threads"));

  m.def("triangular_factors", [](const LogitArrays& x, Index first, Index count, int threads) {
    const PythonRun run(threads);
    const Index heads = std::clamp<Index>(count, 0, x.heads());
    const std::vector<Index> shape{heads, x.q.shape(2), x.q.shape(2)};
    Array<double> queries(shape), keys(shape), centred_keys(shape);
    const TriangularFactors out{first, count, queries.mutable_data(), keys.mutable_data(),
                                centred_keys.mutable_data()};
    compute_in(x.in_double(), [&]<class T>() {
      const LogitSource<T> source = x.view<T>();
      const py::gil_scoped_release release;
      triangular_factors(source, out, run);
    });
    return py::make_tuple(queries, keys, centred_keys);
  }, Standard(), py::arg("logits"), py::arg("first"), py::arg("count"), py::arg("threads"));
}

}  // namespace headfit::python
