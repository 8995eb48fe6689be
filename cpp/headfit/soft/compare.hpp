// How far the attention of a head is from a dense target, row by row. It knows nothing of how
// the head was found.
#pragma once

#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/soft/soft_target.hpp"

namespace headfit {

// Of each row, with A the target and M the attention: KL(A || M) in nats, infinite where A has
// mass that M cannot have, and the total variation, half the sum of |A - M|.
struct SoftDistances {
  explicit SoftDistances(Index rows)
      : divergence(static_cast<std::size_t>(rows)), variation(divergence.size()),
        asks(divergence.size()) {}
  std::vector<double> divergence, variation;
  std::vector<char> asks;  // whether the target's row is not zero
};

// In double throughout, whatever the dtype of the arrays was.
SoftDistances compare_soft(const SoftTarget<double>& target, const LogitSource<double>& attention,
                           const Run& run);

}  // namespace headfit
