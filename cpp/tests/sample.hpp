// Targets that own their arrays.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "check.hpp"
#include "headfit/base/errors.hpp"
#include "headfit/pattern/regular.hpp"
#include "headfit/pattern/target.hpp"
#include "headfit/random/philox.hpp"

namespace headfit::test {

struct OwnedTarget {
  std::vector<Offset> offsets{0};
  std::vector<Column> columns;
  std::vector<double> weights;

  OwnedTarget& row(std::vector<Column> at, std::vector<double> w) {
    columns.insert(columns.end(), at.begin(), at.end());
    weights.insert(weights.end(), w.begin(), w.end());
    offsets.push_back(static_cast<Offset>(columns.size()));
    return *this;
  }
  Target view(const Mask& mask = {}) const {
    return {static_cast<Index>(offsets.size()) - 1, offsets.data(), columns.data(), weights.data(),
            mask};
  }
};

// A target with k entries per row and per column. Before they are scaled to sum to 1, the weights
// of a row are 1 ... k, or all 1 if `uniform`.
inline OwnedTarget regular_target(Index n, Index k, std::uint64_t seed, bool uniform = false) {
  const std::vector<Column> columns = random_regular(n, k, seed);
  OwnedTarget t;
  for (Index i = 0; i < n; ++i) {
    std::vector<double> w;
    double sum = 0;
    for (Index p = 0; p < k; ++p) {
      w.push_back(uniform ? 1 : 1 + static_cast<double>((i + p) % k));
      sum += w.back();
    }
    for (double& x : w) x /= sum;
    t.row({columns.begin() + i * k, columns.begin() + (i + 1) * k}, w);
  }
  return t;
}

// Checks that f refuses bad tolerances with messages that name what is wrong.
template <class F>
void for_bad_tolerances(F&& f) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const double leak : {0.0, 1.0, -0.1, inf, nan}) {
    CHECK_THROWS(InputError, "leak must lie strictly between 0 and 1", f({leak, 0.1}));
  }
  for (const double distortion : {-1.0, inf, nan}) {
    CHECK_THROWS(InputError, "distortion must be", f({0.05, distortion}));
  }
  for (const double max_logit : {0.0, -3.0, nan}) {
    CHECK_THROWS(InputError, "max_logit must be positive", f({0.05, 0.1, max_logit}));
  }
}

// A target with a column that is out of range: no function may use it as an index.
inline OwnedTarget target_out_of_range(Index n) {
  OwnedTarget t;
  for (Index i = 0; i < n; ++i) t.row({static_cast<Column>(i + 1)}, {1});
  return t;
}

}  // namespace headfit::test
