#include "headfit/rows/difference_factor.hpp"

#include <cmath>

namespace headfit {

void DifferenceFactor::reserve(int dim) {
  if (q_.rows() != dim) {
    q_.setZero(dim, dim);
    r_.setZero(dim, dim);
    correction_.setZero(dim);
  }
  size_ = 0;
}

double DifferenceFactor::split(const Eigen::VectorXd& v, Eigen::VectorXd& h, Eigen::VectorXd& z) {
  z = v;
  double before = v.norm();
  if (size_ == 0) return before;
  auto basis = q_.leftCols(size_);
  h.head(size_).noalias() = basis.transpose() * z;
  z.noalias() -= basis * h.head(size_);
  double norm = z.norm();
  // Gram-Schmidt again while cancellation is heavy: one repeat restores orthogonality
  // unless z is rounding noise, and then a third pass changes nothing that matters.
  for (int pass = 0; pass < 2 && norm < 0.5 * before; ++pass) {
    before = norm;
    correction_.head(size_).noalias() = basis.transpose() * z;
    z.noalias() -= basis * correction_.head(size_);
    h.head(size_) += correction_.head(size_);
    norm = z.norm();
  }
  return norm;
}

void DifferenceFactor::append(const Eigen::VectorXd& h, const Eigen::VectorXd& z, double norm) {
  q_.col(size_) = z / norm;
  r_.col(size_).head(size_) = h.head(size_);
  r_(size_, size_) = norm;
  ++size_;
}

void DifferenceFactor::remove(int column) {
  for (int j = column; j + 1 < size_; ++j) r_.col(j).head(j + 2) = r_.col(j + 1).head(j + 2);
  --size_;
  // R is now upper Hessenberg from `column` on: rotate the subdiagonal away.
  for (int i = column; i < size_; ++i) {
    const double a = r_(i, i);
    const double b = r_(i + 1, i);
    const double len = std::hypot(a, b);
    if (len == 0.0) continue;
    const double c = a / len;
    const double s = b / len;
    r_(i, i) = len;
    for (int j = i + 1; j < size_; ++j) {
      const double upper = r_(i, j);
      const double lower = r_(i + 1, j);
      r_(i, j) = c * upper + s * lower;
      r_(i + 1, j) = c * lower - s * upper;
    }
    double* left = q_.col(i).data();
    double* right = q_.col(i + 1).data();
    for (Eigen::Index k = 0; k < q_.rows(); ++k) {
      const double upper = left[k];
      const double lower = right[k];
      left[k] = c * upper + s * lower;
      right[k] = c * lower - s * upper;
    }
  }
}

void DifferenceFactor::subtract(int j, int t) { r_.col(j).head(t + 1) -= r_.col(t).head(t + 1); }

void DifferenceFactor::solve_r(Eigen::VectorXd& x) const {
  for (int j = size_ - 1; j >= 0; --j) {
    x[j] /= r_(j, j);
    x.head(j) -= x[j] * r_.col(j).head(j);
  }
}

void DifferenceFactor::solve_rt(Eigen::VectorXd& x) const {
  for (int j = 0; j < size_; ++j) {
    x[j] = (x[j] - r_.col(j).head(j).dot(x.head(j))) / r_(j, j);
  }
}

}  // namespace headfit
