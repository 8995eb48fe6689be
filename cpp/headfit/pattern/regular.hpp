// Random patterns with exactly k entries in every row and in every column.
#pragma once

#include <cstdint>
#include <vector>

#include "headfit/base/types.hpp"

namespace headfit {

// Row-major (n, k): the sorted, distinct columns of each row; every column occurs k
// times. 1 <= k <= n < 2^31, otherwise InputError; k = n is the full pattern. The same
// seed gives the same pattern everywhere. Time O(n k log k).
std::vector<Column> random_regular(Index n, Index k, std::uint64_t seed);

}  // namespace headfit
