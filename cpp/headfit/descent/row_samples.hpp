// Which rows a descent looks at: random ones in its steps, and the same ones whenever it judges.
#pragma once

#include <random>
#include <vector>

#include "headfit/base/types.hpp"

namespace headfit::descent {

class RowSamples {
 public:
  explicit RowSamples(std::uint64_t seed) : random_(seed) {}

  // A number from 0 to limit - 1.
  Index below(Index limit) {
    return static_cast<Index>(random_() % static_cast<std::uint64_t>(limit));
  }

  // One random row of each of as many equal parts of all rows. Valid until the next call, as are those
  // of `even`.
  const std::vector<Index>& random(Index wanted, Index all) {
    return sample(wanted, all, [&](Index i, Index count) {
      const Index first = i * all / count, end = (i + 1) * all / count;
      return first + below(end - first);
    });
  }
  // The rows in the middle of such parts.
  const std::vector<Index>& even(Index wanted, Index all) {
    return sample(wanted, all,
                  [&](Index i, Index count) { return ((2 * i + 1) * all) / (2 * count); });
  }

 private:
  template <class Row>
  const std::vector<Index>& sample(Index wanted, Index all, const Row& row) {
    const Index count = std::min(wanted, all);
    rows_.resize(static_cast<std::size_t>(count));
    for (Index i = 0; i < count; ++i) rows_[static_cast<std::size_t>(i)] = row(i, count);
    return rows_;
  }

  std::mt19937_64 random_;
  std::vector<Index> rows_;
};

}  // namespace headfit::descent
