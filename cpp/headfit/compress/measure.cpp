#include "headfit/compress/folds.hpp"

#include "headfit/base/linear_algebra.hpp"

namespace headfit::compress {
namespace {

// What the rows of a unit have in sum.
struct UnitSums {
  double log_sums = 0, top_logits = 0;
  Vector<double> received;  // of each key: the attention of all rows
  Vector<double> attends;  // of each row: 1 if it attends to anything, and 0 otherwise
};

template <class T>
class MeasureFold : public UnitFold<T> {
 public:
  MeasureFold(const LogitSource<T>& source, UnitWork<T>& work, UnitSums& sums)
      : UnitFold<T>(source, work), sums_(sums), partition_(source.sink(0)) {}

  void begin(const RowBlock&) { partition_ = Partition<T>(this->source_.sink(0)); }

  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    const T factor = partition_.to_exponentials(entries.data, entries.padded());
    for (Index c = 0; c < entries.count(); ++c) {
      sums_.received[entries.column(c)] += static_cast<double>(factor * entries.data[c]);
    }
    sums_.attends[block.first + r] = factor > 0 ? 1 : 0;
    this->gather_keys(block, r, entries, factor);
  }

  void end(const RowBlock& block) {
    if (block.by_entries) return add_partition();
    if (block.col_begin >= block.col_end) return;
    const Index cols = this->padded(block);
    T* factors = this->work_.factors.ensure(block.count);
    received_.setZero(cols);
    for (Index r = 0; r < block.count; ++r) {
      T* x = this->row(r);
      factors[r] = partition_.to_exponentials(x, cols);
      received_ += factors[r] * Eigen::Map<const Vector<T>>(x, cols);
      sums_.attends[block.first + r] = factors[r] > 0 ? 1 : 0;
    }
    add_partition();
    sums_.received.segment(block.col_begin, cols) += received_.template cast<double>();
    this->gather_keys(block, this->row(0), factors);
  }

 private:
  void add_partition() {
    sums_.log_sums += partition_.log_sums();
    sums_.top_logits += partition_.top_logits();
  }

  UnitSums& sums_;
  Partition<T> partition_;  // of the current block
  Vector<T> received_;
};

}  // namespace

Measured Measured::zero(Index heads, Index dim) {
  Measured zero;
  zero.attended.assign(static_cast<std::size_t>(heads), Matrix<double>::Zero(dim, dim));
  zero.moments = {zero.attended, Matrix<double>::Zero(dim, dim)};
  return zero;
}

void Measured::add(const Measured& other) {
  rows += other.rows;
  constant += other.constant;
  top_logit += other.top_logit;
  moments.keys += other.moments.keys;
  for (std::size_t h = 0; h < attended.size(); ++h) {
    attended[h] += other.attended[h];
    moments.queries[h] += other.moments.queries[h];
  }
}

void Measured::to_means() {
  const auto count = static_cast<double>(std::max<Index>(1, rows));
  constant /= count;
  top_logit /= count;
  moments.keys /= count;
  for (Matrix<double>& queries : moments.queries) queries /= count;
  for (Matrix<double>& part : attended) part /= count;
}

template <class T>
Matrix<T> centred_keys(const LogitSource<T>& passage) {
  Matrix<T> keys = passage.k[0];
  Vector<double> sum = Vector<double>::Zero(keys.cols());
  Index count = 0;
  for (Index c = 0; c < keys.rows(); ++c) {
    if (passage.has_key(c)) {
      sum += keys.row(c).transpose().template cast<double>();
      ++count;
    } else {
      keys.row(c).setZero();
    }
  }
  if (passage.sinks || count == 0) return keys;
  const Vector<T> mean = (sum / static_cast<double>(count)).template cast<T>();
  for (Index c = 0; c < keys.rows(); ++c) {
    if (passage.has_key(c)) keys.row(c) -= mean.transpose();
  }
  return keys;
}

template <class T>
void add_keys(const LogitSource<T>& passage, KeyMoments& sums) {
  Matrix<double> keys = without_padding(passage, passage.k[0]).template cast<double>();
  add_moments<double>(keys, keys, sums.plain);
  if (keys.rows() > 0) keys.rowwise() -= keys.colwise().mean().eval();
  add_moments<double>(keys, keys, sums.centred);
  sums.keys += keys.rows();
}

template <class T>
void measure(const LogitSource<T>& given, Index head, const Unit& unit,
             std::span<const Index> numbers, Measured& sums) {
  LogitSource<T> source = given;
  source.rows = rows_of(unit, numbers);
  const bool capped = source.softcap > 0;
  const Matrix<T> keys = capped ? centred_keys(source) : Matrix<T>(source.k[0]);
  const Index dim = keys.cols(), cols = keys.rows();

  UnitWork<T> work;
  work.dim = dim;
  const KeyLayouts layouts = whole_row_layouts(source, Run{1, {}});
  work.key_features.reset(cols, dim, layouts);
  work.key_features.set(keys);
  std::fill_n(work.key_sums.ensure(unit.count * dim), unit.count * dim, T(0));
  UnitSums found{0, 0, Vector<double>::Zero(round_up(cols, Blocking<T>::panel)),
                 Vector<double>::Zero(unit.count)};
  const PackedKeys<T> packed(source, 0, 1, Run{1, {}}, layouts);
  stream_tiles(source, packed, Run{1, {}}, [&] { return MeasureFold<T>(source, work, found); });

  const Eigen::Map<const Matrix<T>> stored(work.key_sums.data(), unit.count, dim);
  const Matrix<double> attended = stored.template cast<double>();
  const Matrix<double> wide = keys.template cast<double>();
  Matrix<double> queries = source.q[0].middleRows(unit.first, unit.count).template cast<double>();
  queries = found.attends.asDiagonal() * queries;
  sums.rows += static_cast<Index>(found.attends.sum());
  add_moments<double>(queries, queries, sums.moments.queries[static_cast<std::size_t>(head)]);
  add_moments<double>(wide, found.received.head(cols).asDiagonal() * wide, sums.moments.keys);
  add_moments<double>(attended, attended, sums.moments.keys, -1);
  if (capped) return;
  Matrix<double> both = Matrix<double>::Zero(dim, dim);
  add_moments<double>(queries, attended, both);
  sums.attended[static_cast<std::size_t>(head)] += both;
  sums.top_logit += found.top_logits;
  sums.constant += found.log_sums - source.scale * both.trace();
}

template Matrix<float> centred_keys(const LogitSource<float>&);
template Matrix<double> centred_keys(const LogitSource<double>&);
template void add_keys(const LogitSource<float>&, KeyMoments&);
template void add_keys(const LogitSource<double>&, KeyMoments&);
template void measure(const LogitSource<float>&, Index, const Unit&, std::span<const Index>,
                      Measured&);
template void measure(const LogitSource<double>&, Index, const Unit&, std::span<const Index>,
                      Measured&);

}  // namespace headfit::compress
