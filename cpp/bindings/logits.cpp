// Masks and logits: made and checked once, then passed to every function that reads them.
#include "logits.hpp"

#include "headfit/logits/source.hpp"

namespace headfit::python {
namespace {

LogitArrays checked(LogitArrays logits) {
  compute_in(logits.in_double(), [&]<class T>() {
    const LogitSource<T> source = logits.view<T>();
    source.validate();
    check_mask(source.mask, source.q.count, source.q.rows, source.k.rows);
  });
  return logits;
}

}  // namespace

Mask MaskArrays::checked_view(Index heads, Index rows, Index cols) const {
  const Mask mask = view(heads, rows, cols);
  check_mask(mask, heads, rows, cols);
  return mask;
}

Mask MaskArrays::view(Index heads, Index rows, Index cols) const {
  Mask m;
  m.left = left;
  m.right = right;
  if (dense) {
    if (dense->ndim() != 3 || dense->shape(0) != heads || dense->shape(1) != rows ||
        dense->shape(2) != cols) {
      throw InputError("a dense mask must have the shape of the logits: heads, rows, keys");
    }
    m.dense = dense->data();
    m.dense_head = item_stride(*dense, 0);
    m.dense_row = item_stride(*dense, 1);
    m.dense_col = item_stride(*dense, 2);
  }
  if (sparse_offsets && sparse_columns) {
    if (sparse_offsets->size() != rows + 1 ||
        sparse_offsets->data()[rows] != sparse_columns->size()) {
      throw InputError("a sparse mask must have the rows of the logits, ", rows,
                       ", and offsets that end at its number of columns");
    }
    m.sparse_offsets = sparse_offsets->data();
    m.sparse_columns = sparse_columns->data();
  }
  if (key_lengths) {
    if (key_lengths->size() != heads) {
      throw InputError("key_lengths must be one for each of the ", heads, " heads; got ",
                       key_lengths->size());
    }
    m.key_lengths = key_lengths->data();
  }
  if (keys) {
    if (keys->ndim() != 2 || keys->shape(0) != heads || keys->shape(1) != cols) {
      throw InputError("a mask of keys must have a row of all keys for each head");
    }
    m.keys = keys->data();
    m.keys_head = item_stride(*keys, 0);
    m.keys_col = item_stride(*keys, 1);
  }
  return m;
}

void bind_logits(py::module_& m) {
  py::class_<MaskArrays>(m, "Mask").def(
      py::init([](std::optional<Index> left, std::optional<Index> right,
                  std::optional<Array<bool>> dense, const std::optional<py::array>& offsets,
                  const std::optional<py::array>& columns,
                  const std::optional<py::array>& key_lengths, std::optional<Array<bool>> keys) {
    if (offsets.has_value() != columns.has_value()) {
      throw InputError("a sparse mask needs both sparse_offsets and sparse_columns");
    }
    return MaskArrays{left,
                      right,
                      std::move(dense),
                      vector_of<Offset>(offsets, "sparse_offsets"),
                      vector_of<Column>(columns, "sparse_columns"),
                      vector_of<Index>(key_lengths, "key_lengths"),
                      std::move(keys)};
  }),
      py::kw_only(), py::arg("left") = py::none(), py::arg("right") = py::none(),
      py::arg("dense") = py::none(), py::arg("sparse_offsets") = py::none(),
      py::arg("sparse_columns") = py::none(), py::arg("key_lengths") = py::none(),
      py::arg("keys") = py::none());

  m.def("masks_agree",
        [](const MaskArrays& a, const MaskArrays& b, Index heads, Index rows, Index cols) {
    const Mask one = a.checked_view(heads, rows, cols), other = b.checked_view(heads, rows, cols);
    const py::gil_scoped_release release;
    return masks_agree(one, other, heads, rows, cols);
  }, py::arg("a"), py::arg("b"), py::arg("heads"), py::arg("rows"), py::arg("cols"));

  // Which columns of an n x n matrix a row may attend to.
  m.def("allowed_columns", [](const MaskArrays& mask, Index row, Index n) {
    const Mask view = mask.checked_view(1, n, n);
    if (row < 0 || row >= n) throw InputError("row must lie in 0 ... ", n - 1);
    Array<bool> allowed(n);
    for (Index j = 0; j < n; ++j) allowed.mutable_data()[j] = view.allows(0, row, j, n, n);
    return allowed;
  }, py::arg("mask"), py::arg("row"), py::arg("n"));

  py::class_<LogitOptions>(m, "LogitOptions")
      .def(py::init([](Index group, double scale, double softcap, std::optional<MaskArrays> mask,
                       std::optional<py::array> bias, std::optional<py::array> rotary,
                       bool rotary_halves, const std::optional<py::array>& sinks) {
    return LogitOptions{group,           scale,
                        softcap,         mask.value_or(MaskArrays{}),
                        std::move(bias), std::move(rotary),
                        rotary_halves,   vector_of<double>(sinks, "sinks")};
  }),
           py::kw_only(), py::arg("group") = 1, py::arg("scale") = 1.0, py::arg("softcap") = 0.0,
           py::arg("mask") = py::none(), py::arg("bias") = py::none(),
           py::arg("rotary") = py::none(), py::arg("rotary_halves") = false,
           py::arg("sinks") = py::none());

  py::class_<LogitArrays>(m, "Logits")
      .def(py::init([](py::array q, py::array k, LogitOptions options) {
    return checked({std::move(q), std::move(k), std::move(options), std::nullopt});
  }),
           Standard(), py::arg("q"), py::arg("k"), py::arg("options") = LogitOptions{})
      // Returns some rows of the same logits (None: all rows), with shared arrays and options.
      .def("of_rows", [](const LogitArrays& x, const std::optional<py::array>& rows) {
    return checked({x.q, x.k, x.options, vector_of<Index>(rows, "rows")});
  }, Standard(), py::arg("rows"));
}

}  // namespace headfit::python
