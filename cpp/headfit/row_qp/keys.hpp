// The keys of a row's problem, as the solver reads them.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "headfit/base/checkpoint.hpp"

namespace headfit {

inline double key_norm(const double* key, std::ptrdiff_t dim) {
  const Eigen::Map<const Eigen::VectorXd> k(key, dim);
  const double norm = k.norm();
  // stableNorm() is many times slower, so it is used only if squares overflow or underflow.
  return norm > 1e-140 && norm < 1e140 ? norm : k.stableNorm();
}

// Row-major keys, one key per row. `stride` is the distance between rows, in doubles.
struct KeyView {
  const double* data = nullptr;
  std::ptrdiff_t rows = 0;
  std::ptrdiff_t cols = 0;
  std::ptrdiff_t stride = 0;
  // The norms of all keys, from KeyNorms. Without them the solver computes the norms that it needs,
  // and scans once more where it would need the largest of all.
  const double* norms = nullptr;
  double largest_norm = std::numeric_limits<double>::infinity();

  const double* row(std::ptrdiff_t j) const { return data + j * stride; }
  double norm(std::ptrdiff_t j) const { return norms ? norms[j] : key_norm(row(j), cols); }
};

// The norms of all keys, for callers that solve many rows with the same keys.
class KeyNorms {
 public:
  explicit KeyNorms(const KeyView& keys) : norms_(static_cast<std::size_t>(keys.rows)) {
    Checkpoints pace;
    for (std::ptrdiff_t j = 0; j < keys.rows; ++j) {
      norms_[static_cast<std::size_t>(j)] = key_norm(keys.row(j), keys.cols);
      largest_ = std::max(largest_, norms_[static_cast<std::size_t>(j)]);
      pace.after(keys.cols);
    }
  }
  // The returned view must not be used after this object is destroyed.
  KeyView add_to(KeyView keys) const {
    keys.norms = norms_.data();
    keys.largest_norm = largest_;
    return keys;
  }

 private:
  std::vector<double> norms_;
  double largest_ = 0.0;
};

}  // namespace headfit
