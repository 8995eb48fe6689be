// Products of row-major matrices and a Cholesky factor: Eigen's kernels are compiled here, and not in
// every file that multiplies.
#pragma once

#include <Eigen/Cholesky>
#include <type_traits>

#include "headfit/base/types.hpp"

namespace headfit {

template <class T>
using MatrixInput = const Eigen::Ref<const Matrix<std::type_identity_t<T>>, 0, RowStride>&;

template <class T>
using MatrixOutput = Eigen::Ref<Matrix<std::type_identity_t<T>>, 0, RowStride>;

// out += a b. An output shares no memory with the inputs.
template <class T>
void add_product(MatrixInput<T> a, MatrixInput<T> b, MatrixOutput<T> out);

// out += factor a^T b.
template <class T>
void add_moments(MatrixInput<T> a, MatrixInput<T> b, MatrixOutput<T> out, T factor = 1);

// out = a b.
template <class T>
void multiply(MatrixInput<T> a, MatrixInput<T> b, Matrix<T>& out) {
  out.setZero(a.rows(), b.cols());
  add_product<T>(a, b, out);
}

// A positive definite matrix, as the factor that linear systems are solved with.
class Factor {
 public:
  Factor() = default;
  explicit Factor(const Matrix<double>& a);
  // Whether a matrix without NaN was positive definite, also after rounding.
  bool is_definite() const { return factor_.info() == Eigen::Success; }
  void solve_in_place(Eigen::MatrixXd& x) const;

 private:
  Eigen::LLT<Eigen::MatrixXd> factor_;
};

}  // namespace headfit
