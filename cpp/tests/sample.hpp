// Targets that own their arrays.
#pragma once

#include <cmath>
#include <vector>

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
  Target view() const {
    return {static_cast<Index>(offsets.size()) - 1, offsets.data(), columns.data(), weights.data()};
  }
};

// k entries a row and a column; weights i + 1 before they are scaled to sum to 1.
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

}  // namespace headfit::test
