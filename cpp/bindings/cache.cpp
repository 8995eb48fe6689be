// Keys and values of a layer stored as latents of a few bits.
#include "headfit/cache/fit_latents.hpp"
#include "headfit/cache/stored_tokens.hpp"
#include "logits.hpp"

namespace headfit::python {
namespace {

// The mean of the tokens and the variances of their components, as matrices of one row, and these
// components, in columns.
using SpectrumArrays = std::array<py::array, 3>;

KeySpectrum spectrum_of(const SpectrumArrays& arrays) {
  const auto& [mean, variances, components] = arrays;
  return {matrix_of(mean, "mean").reshaped(), matrix_of(variances, "variances").reshaped(),
          matrix_of(components, "components")};
}

// The passages of a layer, with the cosines and sines of the positions of their keys.
struct LayerArrays {
  std::vector<LogitArrays> passages;
  std::optional<py::array> table;
  bool halves;
  KeySpectrum spectrum;
  Index choosing;

  LayerPassages view() const {
    LayerPassages layer;
    Index longest = 0;
    for (const LogitArrays& passage : passages) {
      layer.passages.push_back(passage.view<float>());
      longest = std::max(longest, passage.cols());
    }
    layer.spectrum = spectrum;
    layer.choosing = choosing;
    if (!table) return layer;
    const Heads<float> angles = one_head<float>(*table, "the table of positions");
    if (!passages.empty() && (angles.rows < longest || angles.cols != layer.passages[0].k.cols)) {
      throw InputError("the table of positions must have a row for each key, of their size");
    }
    layer.positions = {std::get<const float*>(angles.data), 0, halves};
    return layer;
  }
};

py::tuple arrays_of(const LatentMaps& maps) {
  return py::make_tuple(array_of(maps.encode), array_of(maps.decode), array_of(maps.mean));
}

py::list fit_layers_of(const std::vector<LayerArrays>& given,
                       const std::vector<LatentOptions>& options, const py::object& done,
                       int threads) {
  const PythonRun run(threads);
  std::vector<LayerPassages> layers;
  for (const LayerArrays& layer : given) layers.push_back(layer.view());
  const auto report = loss_report<LatentResult>(done);
  std::vector<LatentResult> results;
  {
    const py::gil_scoped_release release;
    results = fit_layers(layers, options, report, run);
  }
  py::list found;
  for (const LatentResult& r : results) {
    found.append(py::make_tuple(r.format.bits(), arrays_of(r.maps), r.start, r.loss, r.seconds));
  }
  return found;
}

template <class T>
using Contiguous = py::array_t<T, py::array::c_style>;

// How tokens are stored. Arrays of a batch have the axes entry, token and byte; or entry, head, token
// and number.
struct StoreArrays {
  TokenStore store;

  StoreArrays(const std::array<py::array, 3>& maps, std::vector<int> bits, Index latents_per_step,
              Index heads)
      : store{LatentFormat(std::move(bits), latents_per_step),
              {one_head<float>(maps[0], "encode")[0], one_head<float>(maps[1], "decode")[0],
               one_head<float>(maps[2], "mean")[0]},
              heads} {
    store.check();
  }

  TokenBatch batch(Index entries, Index tokens, const std::optional<py::array>& table,
                   bool halves) const {
    TokenBatch batch{entries, tokens, {}};
    if (!table) return batch;
    const Heads<float> angles = one_head<float>(*table, "the table of positions");
    if (angles.rows != entries * tokens || angles.cols != store.size()) {
      throw InputError("the table of positions must have a row for each token, of the head size");
    }
    batch.positions = {std::get<const float*>(angles.data), 0, halves};
    return batch;
  }

  Array<std::uint8_t> stored(const Contiguous<float>& numbers,
                             const std::optional<py::array>& table, bool halves,
                             int threads) const {
    const PythonRun run(threads);
    if (numbers.ndim() != 4 || numbers.shape(1) != store.heads ||
        numbers.shape(3) != store.size()) {
      throw InputError("numbers must have the axes entry, head, token and number");
    }
    const TokenBatch given = batch(numbers.shape(0), numbers.shape(2), table, halves);
    Array<std::uint8_t> bytes(std::vector<Index>{given.entries, given.tokens, store.token_bytes()});
    std::uint8_t* to = bytes.mutable_data();
    {
      const py::gil_scoped_release release;
      store_tokens(store, given, numbers.data(), to, run);
    }
    return bytes;
  }

  Array<float> read(const Contiguous<std::uint8_t>& bytes, const std::optional<py::array>& table,
                    bool halves, int threads) const {
    const PythonRun run(threads);
    if (bytes.ndim() != 3 || bytes.shape(2) != store.token_bytes()) {
      throw InputError("stored must have the axes entry, token and byte");
    }
    const TokenBatch given = batch(bytes.shape(0), bytes.shape(1), table, halves);
    Array<float> numbers(
        std::vector<Index>{given.entries, store.heads, given.tokens, store.size()});
    float* to = numbers.mutable_data();
    {
      const py::gil_scoped_release release;
      read_tokens(store, given, bytes.data(), to, run);
    }
    return numbers;
  }
};

}  // namespace

void bind_cache(py::module_& m) {
  // `table`: for each position the cosines and then the sines of its angles, in float32; or None.
  // `spectrum`: of the keys that are fitted.
  py::class_<LayerArrays>(m, "LayerPassages")
      .def(py::init([](std::vector<LogitArrays> passages, std::optional<py::array> table,
                       bool halves, const SpectrumArrays& spectrum, Index choosing) {
    return LayerArrays{std::move(passages), std::move(table), halves, spectrum_of(spectrum),
                       choosing};
  }),
           Standard(), py::arg("passages"), py::arg("table").none(true), py::arg("halves"),
           py::arg("spectrum"), py::arg("choosing"));
  py::class_<LatentOptions>(m, "LatentOptions")
      .def(py::init([](std::vector<int> bits, Index latents_per_step, Index rank, Index total_bits,
                       Index steps, Index rows, std::uint64_t seed) {
    LatentOptions options;
    options.bits = std::move(bits);
    options.latents_per_step = latents_per_step;
    options.rank = rank;
    options.total_bits = total_bits;
    options.steps = steps;
    options.rows = rows;
    options.seed = seed;
    return options;
  }),
           Standard(), py::kw_only(), py::arg("bits"), py::arg("latents_per_step"), py::arg("rank"),
           py::arg("total_bits"), py::arg("steps"), py::arg("rows"), py::arg("seed"));
  // For each layer (bits, (encode, decode, mean), loss at the start, loss, seconds). done(layer, loss)
  // is called after each.
  m.def("fit_layers", &fit_layers_of, Standard(), py::arg("layers"), py::arg("options"),
        py::arg("done").none(true), py::arg("threads"));
  // (bits, (encode, decode, mean)), without a descent.
  m.def("principal_latents", [](const SpectrumArrays& spectrum, const LatentOptions& options) {
    const PythonRun run(1);
    const KeySpectrum given = spectrum_of(spectrum);
    LatentResult result;
    {
      const py::gil_scoped_release release;
      result = principal_result(given, options);
    }
    return py::make_tuple(result.format.bits(), arrays_of(result.maps));
  }, Standard(), py::arg("spectrum"), py::arg("options"));
  // Keys or values of tokens (entry, head, token, number) as bytes (entry, token, byte), and back.
  // `table`: for each token of the batch the cosines and then the sines of its angles; or None.
  const auto table = py::arg("table").none(true);
  py::class_<StoreArrays>(m, "TokenStore")
      .def(py::init<const std::array<py::array, 3>&, std::vector<int>, Index, Index>(), Standard(),
           py::arg("maps"), py::arg("bits"), py::arg("latents_per_step"), py::arg("heads"))
      .def(py::pickle(
          [](const StoreArrays& x) {
    const LatentFormat& format = x.store.format;
    return py::make_tuple(arrays_of(x.store.maps), format.bits(), format.latents_per_step(),
                          x.store.heads);
  },
          [](const py::tuple& state) {
    return StoreArrays(state[0].cast<std::array<py::array, 3>>(), state[1].cast<std::vector<int>>(),
                       state[2].cast<Index>(), state[3].cast<Index>());
  }))
      .def_property_readonly("token_bytes",
                             [](const StoreArrays& x) { return x.store.token_bytes(); })
      .def("store", &StoreArrays::stored, Standard(), py::arg("numbers").noconvert(), table,
           py::arg("halves"), py::arg("threads"))
      .def("read", &StoreArrays::read, Standard(), py::arg("stored").noconvert(), table,
           py::arg("halves"), py::arg("threads"));
}

}  // namespace headfit::python
