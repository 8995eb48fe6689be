// The check of the keys that a caller gives.
#pragma once

#include <string>

#include "headfit/base/errors.hpp"
#include "headfit/pattern/target.hpp"

namespace headfit {

inline void check_keys(const Target& target, const MatrixView<double>& keys) {
  if (keys.rows() != target.n || keys.cols() < 1) {
    throw InputError("keys must have one row for each of the " + std::to_string(target.n) +
                     " rows of A and at least one column; got " + std::to_string(keys.rows()) +
                     " x " + std::to_string(keys.cols()));
  }
}

}  // namespace headfit
