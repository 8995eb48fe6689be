// A dense target: attention given by its own queries and keys, or a matrix in memory.
#pragma once

#include <variant>

#include "headfit/logits/source.hpp"

namespace headfit {

// The matrix is read where it lies, whatever the dtype of the computation is.
using StoredMatrix = std::variant<MatrixView<float>, MatrixView<double>, MatrixView<Eigen::half>,
                                  MatrixView<Eigen::bfloat16>>;

// One of the two is set. The rows of a matrix sum to 1, or are zero where nothing is allowed.
template <class T>
struct SoftTarget {
  std::optional<LogitSource<T>> attention;  // one head, all rows
  std::optional<StoredMatrix> matrix;
  Mask mask;  // of the matrix; attention has its own

  Index rows() const {
    return attention ? attention->q.rows
                     : std::visit([](const auto& m) { return m.rows(); }, *matrix);
  }
  Index cols() const {
    return attention ? attention->k.rows
                     : std::visit([](const auto& m) { return m.cols(); }, *matrix);
  }
};

}  // namespace headfit
