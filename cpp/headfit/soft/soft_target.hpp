// A dense target: the attention of given queries and keys, or a given matrix.
#pragma once

#include <variant>

#include "headfit/logits/source.hpp"

namespace headfit {

// The matrix is read as it is stored, whatever the dtype of the computation is.
using StoredMatrix = std::variant<MatrixView<float>, MatrixView<double>, MatrixView<Eigen::half>,
                                  MatrixView<Eigen::bfloat16>>;

// Either `attention` or `matrix` is set. The rows of a matrix sum to 1, or are zero if the mask
// allows nothing.
template <class T>
struct SoftTarget {
  std::optional<LogitSource<T>> attention;  // one head, all rows
  std::optional<StoredMatrix> matrix;
  Mask mask;  // of the matrix; attention has a mask of its own

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
