#include "headfit/row_qp/difference_factor.hpp"

#include <Eigen/Jacobi>
#include <algorithm>

#include "headfit/simd/column_products.hpp"

namespace headfit {

void DifferenceFactor::reserve(int dim) {
  if (dim_ != dim) {
    dim_ = dim;
    columns_.setZero(2 * dim, round_up(dim, product_group));
    product_.setZero(columns_.cols());
  }
  size_ = 0;
}

// Computes x -= [Q; C] Q' (upper half of x), a few columns at a time, so that they are still in the
// nearest cache when they are subtracted.
void DifferenceFactor::project(Eigen::VectorXd& x) {
  // With 50 to 75 columns and d=96, 8 columns at a time take 20% longer, and all at once 12% to
  // 30%.
  constexpr int width = 16;
  for (int j = 0; j < size_; j += width) {
    const int count = std::min(width, size_ - j);
    const auto h = product_.head(count);
    column_products(columns_.col(j).data(), columns_.rows(), dim_, count, x.data(),
                    product_.data());
    const int rows = dim_ + j + count;
    x.head(rows).noalias() -= columns_.block(0, j, rows, count) * h;
  }
}

// Repeats the Gram-Schmidt step while it cancels much of the vector. One repeat restores
// orthogonality, unless z is rounding noise; then one more does not matter. The step is repeated if
// the norm falls below 0.3 times its value, about two bits. With one bit (0.5) most splits were
// repeated once the basis was nearly full, and rows with d=96 took 6% longer.
double DifferenceFactor::clean(double before, Eigen::VectorXd& x) {
  double norm = x.head(dim_).norm();
  for (int pass = 0; pass < 2 && norm < 0.3 * before; ++pass) {
    project(x);
    before = norm;
    norm = x.head(dim_).norm();
  }
  return norm;
}

double DifferenceFactor::split(const Eigen::VectorXd& v, Eigen::VectorXd& x) {
  x.head(dim_) = v;
  x.segment(dim_, size_).setZero();
  project(x);
  return clean(v.norm(), x);
}

// The basis vector that was removed is still stored behind the last column. Its part of v becomes
// part of z again.
double DifferenceFactor::split_after_remove(int column, const Eigen::VectorXd& v,
                                            Eigen::VectorXd& x) {
  const auto left = columns_.col(size_);
  const double h = left.head(dim_).dot(v);
  x.head(dim_ + size_ + 1) += h * left.head(dim_ + size_ + 1);
  double* c = x.data() + dim_;
  std::copy(c + column + 1, c + size_ + 1, c + column);
  return clean(v.norm(), x);
}

void DifferenceFactor::append(const Eigen::VectorXd& x, double norm) {
  auto column = columns_.col(size_);
  column.head(dim_ + size_) = (1.0 / norm) * x.head(dim_ + size_);
  column[dim_ + size_] = 1.0 / norm;
  column.segment(dim_ + size_ + 1, dim_ - size_ - 1).setZero();
  ++size_;
}

void DifferenceFactor::remove(int column) {
  // Rotate the columns of Q until only the last of them depends on this column of D.
  const int row = dim_ + column;
  Eigen::JacobiRotation<double> turn;
  for (int j = column; j + 1 < size_; ++j) {
    turn.makeGivens(columns_(row, j + 1), columns_(row, j));
    columns_.topRows(dim_ + j + 2).applyOnTheRight(j + 1, j, turn);
    double* entry = &columns_(row, j);
    std::copy(entry + 1, entry + (j - column) + 2, entry);
    columns_(dim_ + j + 1, j) = 0.0;
  }
  --size_;
}

void DifferenceFactor::subtract(int j, int t) {
  columns_.row(dim_ + t).head(size_) += columns_.row(dim_ + j).head(size_);
}

void DifferenceFactor::add_shortest(Eigen::VectorXd& w, Eigen::VectorXd& q) const {
  auto h = product_.head(size_);
  h.noalias() = combination().transpose() * w.head(size_);
  q.noalias() += basis() * h;
}

void DifferenceFactor::combine(const Eigen::VectorXd& v, Eigen::VectorXd& w) const {
  auto h = product_.head(size_);
  h.noalias() = basis().transpose() * v;
  w.head(size_).noalias() = combination() * h;
}

}  // namespace headfit
