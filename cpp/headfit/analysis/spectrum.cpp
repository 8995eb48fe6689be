#include "headfit/analysis/spectrum.hpp"

#include <Eigen/QR>
#include <Eigen/SVD>

namespace headfit {
namespace {

using Square = Eigen::MatrixXd;

// The triangular factor of a tall matrix whose rows come a few at a time: each block is
// factored together with the triangle of those before it.
class TriangularFactor {
 public:
  template <class T>
  const Square& of(HeadRows<T>& x, Index head, Index rows, const Eigen::RowVectorXd& mean) {
    const Index d = x.heads().cols;
    const Index block = 4 * d;
    triangle_.setZero(d, d);
    for (Index first = 0; first < rows; first += block) {
      const Index count = std::min(block, rows - first);
      stacked_.resize(d + count, d);
      stacked_.topRows(d) = triangle_;
      for (Index i = 0; i < count; ++i) {
        stacked_.row(d + i) = x.row(head, first + i).template cast<double>() - mean;
      }
      qr_.compute(stacked_);
      triangle_ = qr_.matrixQR().topRows(d).template triangularView<Eigen::Upper>();
      checkpoint();
    }
    return triangle_;
  }

 private:
  Square stacked_, triangle_;
  Eigen::HouseholderQR<Square> qr_;
};

template <class T>
class SpectrumWorker {
 public:
  SpectrumWorker(const LogitSource<T>& source, const SpectrumOut& out)
      : source_(source), out_(out), queries_(source.q), keys_(source.k) {}

  void operator()(Index head) {
    const Index d = source_.q.cols;
    const Index key_head = head / source_.group;
    const Index count = source_.mask.key_lengths ? source_.mask.key_lengths[head] : source_.k.rows;
    const Eigen::RowVectorXd none = Eigen::RowVectorXd::Zero(d);
    const Square left = source_.scale * factor_.of(queries_, head, source_.q.rows, none);
    write(left, factor_.of(keys_, key_head, count, none), out_.values + head * d);
    // Keys without their mean give logits without the means of rows.
    Eigen::RowVectorXd mean = none;
    for (Index j = 0; j < count; ++j) mean += keys_.row(key_head, j).template cast<double>();
    if (count > 0) mean /= static_cast<double>(count);
    write(left, factor_.of(keys_, key_head, count, mean), out_.centred + head * d);
  }

 private:
  static void write(const Square& left, const Square& right, double* out) {
    const Eigen::BDCSVD<Square> svd(left * right.transpose());
    Eigen::Map<Eigen::VectorXd>(out, left.rows()) = svd.singularValues();
  }

  const LogitSource<T>& source_;
  SpectrumOut out_;
  HeadRows<T> queries_, keys_;
  TriangularFactor factor_;
};

}  // namespace

template <class T>
void logit_spectrum(const LogitSource<T>& source, const SpectrumOut& out, const Run& run) {
  source.validate();
  parallel_tasks(source.q.count, run, [&] { return SpectrumWorker<T>(source, out); });
}

template void logit_spectrum(const LogitSource<float>&, const SpectrumOut&, const Run&);
template void logit_spectrum(const LogitSource<double>&, const SpectrumOut&, const Run&);

}  // namespace headfit
