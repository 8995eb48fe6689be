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
  const Square& of(const MatrixView<T>& x, Index rows, const Eigen::RowVectorXd& mean) {
    const Index d = x.cols();
    const Index block = 4 * d;
    triangle_.setZero(d, d);
    for (Index first = 0; first < rows; first += block) {
      const Index count = std::min(block, rows - first);
      stacked_.resize(d + count, d);
      stacked_.topRows(d) = triangle_;
      stacked_.bottomRows(count) =
          x.middleRows(first, count).template cast<double>().rowwise() - mean;
      qr_.compute(stacked_);
      triangle_ = qr_.matrixQR().topRows(d).template triangularView<Eigen::Upper>();
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
      : source_(source), out_(out) {}

  void operator()(Index head) {
    const Index d = source_.q.cols;
    const MatrixView<T> keys = source_.k[head / source_.group];
    const Index count = source_.mask.key_lengths ? source_.mask.key_lengths[head] : keys.rows();
    const Eigen::RowVectorXd none = Eigen::RowVectorXd::Zero(d);
    const Square left =
        source_.scale * factor_.of<T>(source_.q[head], source_.q.rows, none);
    write(left, factor_.of<T>(keys, count, none), out_.values + head * d);
    // Keys without their mean give logits without the means of rows.
    Eigen::RowVectorXd mean = none;
    if (count > 0) mean = keys.topRows(count).template cast<double>().colwise().mean();
    write(left, factor_.of<T>(keys, count, mean), out_.centred + head * d);
  }

 private:
  static void write(const Square& left, const Square& right, double* out) {
    const Eigen::BDCSVD<Square> svd(left * right.transpose());
    Eigen::Map<Eigen::VectorXd>(out, left.rows()) = svd.singularValues();
  }

  const LogitSource<T>& source_;
  SpectrumOut out_;
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
