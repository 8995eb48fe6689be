#include "headfit/analysis/rows_in_double.hpp"

namespace headfit {

template <class T>
Matrix<double> rows_in_double(const LogitSource<T>& source, Side side, Index head, Index first,
                              Index count) {
  source.validate();
  if (head < 0 || head >= source.q.count || first < 0 || count < 0) {
    throw InputError("head and rows must lie within those of the logits");
  }
  const bool of_keys = side == Side::keys;
  const Heads<T>& heads = of_keys ? source.k : source.q;
  const Index last = of_keys && source.mask.key_lengths ? source.mask.key_lengths[head] : heads.rows;
  HeadRows<T> reader(heads);
  Matrix<double> rows(std::clamp<Index>(last - first, 0, count), heads.cols);
  for (Index i = 0; i < rows.rows(); ++i) {
    const RowView<T> row = reader.row(of_keys ? head / source.group : head, first + i);
    std::copy(row.data(), row.data() + row.size(), rows.row(i).data());
  }
  return rows;
}

template Matrix<double> rows_in_double(const LogitSource<float>&, Side, Index, Index, Index);
template Matrix<double> rows_in_double(const LogitSource<double>&, Side, Index, Index, Index);

}  // namespace headfit
