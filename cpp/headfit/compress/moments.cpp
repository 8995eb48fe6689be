// The second moments of the queries, and of the keys as each row attends to them.
#include <memory>

#include "headfit/compress/compress.hpp"
#include "headfit/logits/whole_rows.hpp"
#include "headfit/soft/feature_sums.hpp"

namespace headfit {
namespace compress {
namespace {

template <class T>
class MomentWorker {
 public:
  explicit MomentWorker(const std::vector<Index>& numbers) : numbers_(numbers) {}

  // Adds the sums of q q^T over the rows of a unit, and of the covariances of the keys under their
  // attention, sum_j A_ij (k_j - kbar_i)(k_j - kbar_i)^T.
  void add(const QueryHead<T>& head, const Unit& unit, CompressMoments& sums) {
    const MatrixView<T> k = head.source.k[0];
    const Index cols = k.rows(), width = round_up(cols, Blocking<T>::panel);
    // A shift of all keys changes no covariance. Without their mean less is lost to rounding. But a
    // sink counts as one more key, which is zero.
    centred_ = k;
    if (!head.source.sinks) {
      centred_.rowwise() -= k.colwise().sum() / static_cast<T>(std::max<Index>(1, cols));
    }
    const Index features = soft::feature_count(k.cols());
    std::fill_n(features_.ensure(features * width), features * width, T(0));
    MutableMatrixView<T>(features_.data(), k.cols(), cols, RowStride(width)) = centred_.transpose();
    received_.setZero(width);
    add_rows(head, unit, width, sums);
    const Matrix<double> wide = centred_.template cast<double>();
    sums.keys.noalias() += wide.transpose() * (received_.head(cols).asDiagonal() * wide).eval();
  }

 private:
  void add_rows(const QueryHead<T>& head, const Unit& unit, Index width, CompressMoments& sums) {
    const MatrixView<T> q = head.source.q[0];
    const Index features = soft::feature_count(centred_.cols());
    const std::span<const Index> rows =
        std::span<const Index>(numbers_).subspan(static_cast<std::size_t>(unit.first),
                                                 static_cast<std::size_t>(unit.count));
    typename soft::TargetRows<T>::Reader reader(*head.target);
    const Index step = whole_row_block<T>(width);
    T* weights = weights_.ensure(round_up(step, Blocking<T>::row_group) * width);
    for (Index first = 0; first < unit.count; first += step) {
      const Index count = std::min(step, unit.count - first);
      reader.read({0, first, count, 0, head.source.k.rows}, rows, weights, width);
      T* means = means_.ensure(count * features);
      soft::gather(weights, width, count, features_.data(), width, features, width, means,
                   features);
      for (Index r = 0; r < count; ++r) {
        if (!head.target->asks(unit.first + first + r)) continue;
        const Eigen::Map<const Vector<T>> weight(weights + r * width, width);
        received_ += weight.template cast<double>();
        mean_ = Eigen::Map<const Vector<T>>(means + r * features, centred_.cols())
                    .template cast<double>();
        sums.keys.template selfadjointView<Eigen::Lower>().rankUpdate(mean_, -1);
        query_ = q.row(unit.first + first + r).transpose().template cast<double>();
        sums.queries[static_cast<std::size_t>(head.head)]
            .template selfadjointView<Eigen::Lower>()
            .rankUpdate(query_);
      }
    }
  }

  const std::vector<Index>& numbers_;
  Matrix<T> centred_;
  Buffer<T> features_, weights_, means_;
  Vector<double> received_, mean_, query_;
};

CompressMoments zero_moments(Index heads, Index dim) {
  CompressMoments zero;
  zero.queries.assign(static_cast<std::size_t>(heads), Matrix<double>::Zero(dim, dim));
  zero.keys.setZero(dim, dim);
  return zero;
}

// The mean, from a sum whose lower triangle is right.
Matrix<double> mean_of(const Matrix<double>& sum, double rows) {
  return Matrix<double>(sum.selfadjointView<Eigen::Lower>()) / rows;
}

}  // namespace
}  // namespace compress

template <class T>
CompressMoments CompressLoss<T>::moments(const Run& run) const {
  std::vector<CompressMoments> sums(static_cast<std::size_t>(groups()),
                                    compress::zero_moments(heads_, dim_));
  parallel_tasks(groups(), run, [&] {
    return [&, worker = std::make_unique<compress::MomentWorker<T>>(numbers_)](Index g) {
      const auto group = static_cast<std::size_t>(g);
      for (std::size_t u = group; u < units_.size(); u += sums.size()) {
        const compress::Unit& unit = units_[u];
        worker->add(query_heads_[static_cast<std::size_t>(unit.query_head)], unit, sums[group]);
      }
    };
  });
  CompressMoments mean = compress::zero_moments(heads_, dim_);
  for (const CompressMoments& sum : sums) {
    for (std::size_t h = 0; h < sum.queries.size(); ++h) mean.queries[h] += sum.queries[h];
    mean.keys += sum.keys;
  }
  const double rows = static_cast<double>(std::max<Index>(1, rows_));
  for (Matrix<double>& queries : mean.queries) queries = compress::mean_of(queries, rows);
  mean.keys = compress::mean_of(mean.keys, rows);
  return mean;
}

template CompressMoments CompressLoss<float>::moments(const Run&) const;
template CompressMoments CompressLoss<double>::moments(const Run&) const;

}  // namespace headfit
