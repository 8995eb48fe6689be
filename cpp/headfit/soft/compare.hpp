// How far the attention of a head is from a dense target, row by row, however the head was found.
#pragma once

#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/soft/target_rows.hpp"

namespace headfit {

// For each row, with the target A and the attention M: KL(A || M) in nats, which is infinite if A
// has mass where M cannot have any, and the total variation distance, half the sum of |A - M|.
struct SoftDistances {
  explicit SoftDistances(Index rows)
      : divergence(static_cast<std::size_t>(rows)),
        variation(divergence.size()),
        attends(divergence.size()) {}
  std::vector<double> divergence, variation;
  std::vector<char> attends;  // whether the row of the target is not zero
};

// Computes in double, whatever the dtype of the arrays is.
SoftDistances compare_soft(const SoftTarget<double>& target, const LogitSource<double>& attention,
                           const Run& run);

// Compares heads with their originals, pair by pair, in double. Each has one query head or more.
std::vector<SoftDistances> compare_heads(std::span<const LogitSource<double>> originals,
                                         std::span<const LogitSource<double>> smaller,
                                         const Run& run);

}  // namespace headfit
