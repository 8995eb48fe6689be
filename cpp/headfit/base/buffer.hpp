// Scratch memory that a thread keeps from one task to the next.
#pragma once

#include <algorithm>

#include "headfit/base/types.hpp"

namespace headfit {

// It never shrinks, and is aligned for the widest vectors. It at least doubles when it grows,
// because the rows of a causal mask ask for a little more each time.
template <class T>
class Buffer {
 public:
  T* ensure(Index size) {
    if (data_.size() < size) data_.resize(std::max(size, 2 * data_.size()));
    return data_.data();
  }
  T* data() { return data_.data(); }
  const T* data() const { return data_.data(); }

 private:
  Eigen::Array<T, Eigen::Dynamic, 1> data_;
};

}  // namespace headfit
