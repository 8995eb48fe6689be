// Sums that do not depend on the order in which threads add to them.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "headfit/base/types.hpp"

namespace headfit {

// Sums that several threads add to. The result does not depend on the order, since the sums are
// fixed-point numbers: their addition is associative, that of floating-point numbers is not.
class ExactSums {
 public:
  // `largest` bounds every sum.
  ExactSums(Index count, double largest)
      : sums_(static_cast<std::size_t>(count), 0),
        unit_(std::ldexp(1.0, static_cast<int>(std::ceil(std::log2(largest + 2))) - 61)) {}

  // Each term is rounded to a multiple of the unit, about 2^-61 of the largest sum.
  void add(Index first, const double* terms, Index count) {
    for (Index i = 0; i < count; ++i) {
      if (terms[i] == 0) continue;
      std::atomic_ref<std::int64_t>(sums_[static_cast<std::size_t>(first + i)])
          .fetch_add(std::llrint(terms[i] / unit_), std::memory_order_relaxed);
    }
  }

  void write(double* out) const {
    for (std::size_t i = 0; i < sums_.size(); ++i) out[i] = static_cast<double>(sums_[i]) * unit_;
  }

 private:
  std::vector<std::int64_t> sums_;
  double unit_;
};

}  // namespace headfit
