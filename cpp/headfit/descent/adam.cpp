#include "headfit/descent/adam.hpp"

namespace headfit::descent {

double size_of(const Matrix<float>& x) {
  return std::sqrt(x.cast<double>().squaredNorm() /
                   static_cast<double>(std::max<Index>(1, x.size())));
}

void AdamStep::advance(Matrix<float>& x, const Matrix<float>& g, Matrix<float>& m, Matrix<float>& v,
                       const Matrix<float>& unit) const {
  m = float(first_decay) * m + float(1 - first_decay) * g;
  v = float(second_decay) * v + float(1 - second_decay) * g.cwiseAbs2();
  x.array() -= length * unit.array() * m.array() / ((correction * v.array()).sqrt() + 1e-12f);
}

}  // namespace headfit::descent
