#include "headfit/base/linear_algebra.hpp"

namespace headfit {

template <class T>
void add_product(MatrixInput<T> a, MatrixInput<T> b, MatrixOutput<T> out) {
  out.noalias() += a * b;
}

template <class T>
void add_moments(MatrixInput<T> a, MatrixInput<T> b, MatrixOutput<T> out, T factor) {
  out.noalias() += (factor * a.transpose()) * b;
}

Factor::Factor(const Matrix<double>& a) : factor_(a) {}

void Factor::solve_in_place(Eigen::MatrixXd& x) const { factor_.solveInPlace(x); }

template void add_product<float>(MatrixInput<float>, MatrixInput<float>, MatrixOutput<float>);
template void add_product<double>(MatrixInput<double>, MatrixInput<double>, MatrixOutput<double>);
template void add_moments<float>(MatrixInput<float>, MatrixInput<float>, MatrixOutput<float>,
                                 float);
template void add_moments<double>(MatrixInput<double>, MatrixInput<double>, MatrixOutput<double>,
                                  double);

}  // namespace headfit
