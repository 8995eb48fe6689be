#include "headfit/pattern/regular.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>

#include "headfit/base/checkpoint.hpp"
#include "headfit/base/errors.hpp"
#include "headfit/random/philox.hpp"

namespace headfit {
namespace {

void check(Index n, Index k) {
  constexpr Index most = std::numeric_limits<Column>::max();
  if (n < 1 || n > most) {
    throw InputError("n: expected 1 to ", most, ", got ", n);
  }
  if (k < 1 || k > n) {
    throw InputError("k: expected 1 to n = ", n, ", got ", k);
  }
}

// The rows of a pattern, with k sorted columns each. Until repair_all() a row may hold a column
// more than once.
class Rows {
 public:
  Rows(Index n, Index k) : n_(n), k_(k), columns_(static_cast<std::size_t>(n * k)) {}

  std::span<Column> operator[](Index row) {
    return {columns_.data() + row * k_, static_cast<std::size_t>(k_)};
  }
  Index n() const { return n_; }
  Index k() const { return k_; }
  std::vector<Column> take() && { return std::move(columns_); }

 private:
  Index n_;
  Index k_;
  std::vector<Column> columns_;
};

bool contains(std::span<const Column> sorted, Column column) {
  return std::binary_search(sorted.begin(), sorted.end(), column);
}

// Replaces one copy of `was` by `now`, and moves the columns between them to keep the order.
void replace(std::span<Column> sorted, Column was, Column now) {
  const auto from = std::lower_bound(sorted.begin(), sorted.end(), was);
  const auto to = std::lower_bound(sorted.begin(), sorted.end(), now);
  if (was < now) {
    std::move(from + 1, to, from);
    *(to - 1) = now;
  } else {
    std::move_backward(to, from, from + 1);
    *to = now;
  }
}

// Fills each slot of the rows with a random permutation of the columns. It is shuffled in a compact
// array (4 bytes per row, so that 10^6 rows stay in cache) and then written in order with stride k.
Rows permutations(Index n, Index k, std::uint64_t seed) {
  Rows rows(n, k);
  Checkpoints checkpoints;
  std::vector<Column> shuffled(static_cast<std::size_t>(n));
  for (Index slot = 0; slot < k; ++slot) {
    PhiloxReader random(seed, static_cast<std::uint64_t>(slot));
    std::iota(shuffled.begin(), shuffled.end(), Column{0});
    for (auto left = static_cast<std::uint32_t>(n); left > 1; --left) {
      std::swap(shuffled[left - 1], shuffled[random.below(left)]);
      checkpoints.after(4);
    }
    for (Index row = 0; row < n; ++row) {
      rows[row][static_cast<std::size_t>(slot)] = shuffled[static_cast<std::size_t>(row)];
      checkpoints.after(4);
    }
  }
  for (Index row = 0; row < n; ++row) {
    std::sort(rows[row].begin(), rows[row].end());
    checkpoints.after(8 * k);
  }
  return rows;
}

// Exchanges one copy of `column` in `row` for `other_column` in `other`, unless one of the rows
// would receive a column that it has already. So no exchange adds a repeated entry.
bool try_swap(Rows& rows, Index row, Column column, Index other, Column other_column) {
  if (contains(rows[other], column) || contains(rows[row], other_column)) {
    return false;
  }
  replace(rows[row], column, other_column);
  replace(rows[other], other_column, column);
  return true;
}

// Removes one copy of a column that `row` holds twice. A valid exchange exists whenever
// 2k <= n + 2: at least n - k + 1 rows lack `column`, with k entries each, and of these entries at
// most k (k - 2) lie in the other columns of `row`, so at least k (n - 2k + 3) can be exchanged.
// So the scan that follows the random tries cannot fail.
void repair(Rows& rows, Index row, Column column, PhiloxReader& random) {
  constexpr int tries = 100;
  const auto n = static_cast<std::uint32_t>(rows.n());
  const auto k = static_cast<std::uint32_t>(rows.k());
  for (int i = 0; i < tries; ++i) {
    const Index other = random.below(n);
    if (try_swap(rows, row, column, other, rows[other][random.below(k)])) {
      return;
    }
  }
  const Index start = random.below(n);
  for (Index i = 0; i < rows.n(); ++i) {
    const Index other = (start + i) % rows.n();
    for (Index slot = 0; slot < rows.k(); ++slot) {
      if (try_swap(rows, row, column, other, rows[other][static_cast<std::size_t>(slot)])) {
        return;
      }
    }
  }
  throw std::logic_error("random_regular: no valid exchange, which is impossible");
}

// Each exchange lowers the number of repeated entries, so this ends. Rows before the current one
// have no repeated entries, and no exchange adds one.
void repair_all(Rows& rows, std::uint64_t seed) {
  PhiloxReader random(seed, static_cast<std::uint64_t>(rows.k()));
  std::vector<Column> repeated;
  Checkpoints checkpoints;
  for (Index row = 0; row < rows.n(); ++row) {
    checkpoints.after(rows.k());
    const auto columns = rows[row];
    repeated.clear();
    for (std::size_t slot = 1; slot < columns.size(); ++slot) {
      if (columns[slot] == columns[slot - 1]) {
        repeated.push_back(columns[slot]);
      }
    }
    for (const Column column : repeated) {
      repair(rows, row, column, random);
      checkpoints.after(rows.n());  // repair() looks at n rows or fewer
    }
  }
}

// For k <= n / 2, where repair() always succeeds.
Rows sparse(Index n, Index k, std::uint64_t seed) {
  Rows rows = permutations(n, k, seed);
  repair_all(rows, seed);
  return rows;
}

// Returns the columns that are not in `holes`. If all rows and columns of `holes` have n - k
// entries, those of the result have k.
Rows complement(Rows&& holes) {
  const Index n = holes.n();
  Rows rows(n, n - holes.k());
  Checkpoints checkpoints;
  for (Index row = 0; row < n; ++row) {
    checkpoints.after(n);
    const auto hole = holes[row];
    auto next = hole.begin();
    auto out = rows[row].begin();
    for (Index column = 0; column < n; ++column) {
      if (next != hole.end() && *next == column) {
        ++next;
      } else {
        *out++ = static_cast<Column>(column);
      }
    }
  }
  return rows;
}

}  // namespace

std::vector<Column> random_regular(Index n, Index k, std::uint64_t seed) {
  check(n, k);
  if (k <= n - k) {
    return sparse(n, k, seed).take();
  }
  return complement(sparse(n, n - k, seed)).take();
}

}  // namespace headfit
