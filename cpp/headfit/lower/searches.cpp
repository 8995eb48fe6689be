#include "headfit/lower/searches.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "headfit/base/checkpoint.hpp"
#include "headfit/base/errors.hpp"

namespace headfit {
namespace {

std::vector<Column> all_up_to(Index count) {
  std::vector<Column> all(place(count));
  std::iota(all.begin(), all.end(), Column(0));
  return all;
}

double share(Column denominator) { return denominator > 0 ? 1.0 / denominator : 0.0; }

double edges_of(double share, Index size) {
  return size > 1 ? share * static_cast<double>(size - 1) : 0.0;
}

double edges_of(const SparseTable& table, std::span<const Column> denominators) {
  double sum = 0;
  for (Index i = 0; i < table.rows(); ++i) {
    sum += edges_of(share(denominators[place(i)]), static_cast<Index>(table.row(i).size()));
  }
  return sum;
}

// Calls f(code) for every pair of columns of a row; equal pairs have equal codes.
template <class F>
void for_each_pair(const SparseTable& table, Index i, F&& f) {
  const std::span<const Column> row = table.row(i);
  for (std::size_t a = 0; a < row.size(); ++a) {
    for (std::size_t b = a + 1; b < row.size(); ++b) f(row[a] * Offset(table.cols) + row[b]);
  }
}

// Takes nodes in an order, each unless a neighbour was taken.
std::vector<Column> taken_in(const SparseTable& edges, const std::vector<Column>& order) {
  std::vector<bool> is_free(order.size(), true);
  std::vector<Column> taken;
  for (const Column node : order) {
    if (!is_free[place(node)]) continue;
    taken.push_back(node);
    for (const Column other : edges.row(node)) is_free[place(other)] = false;
  }
  std::sort(taken.begin(), taken.end());
  return taken;
}

}  // namespace

void SparseTable::check() const {
  if (offsets.empty() || offsets.front() != 0 ||
      offsets.back() != static_cast<Offset>(columns.size()) ||
      !std::is_sorted(offsets.begin(), offsets.end())) {
    throw InputError("offsets must rise from 0 to the number of columns that are stored");
  }
  if (std::any_of(columns.begin(), columns.end(), [&](Column c) { return c < 0 || c >= cols; })) {
    throw InputError("columns must lie within the table");
  }
}

std::vector<Column> edge_shares(const SparseTable& table) {
  std::vector<Offset> codes;
  for (Index i = 0; i < table.rows(); ++i) {
    for_each_pair(table, i, [&](Offset code) { codes.push_back(code); });
  }
  std::sort(codes.begin(), codes.end());
  const auto first_of = [&](Offset code) {
    return std::lower_bound(codes.begin(), codes.end(), code) - codes.begin();
  };
  Checkpoints checkpoints;
  std::vector<Column> even(place(table.rows())), whole(place(table.rows()));
  for (Index i = 0; i < table.rows(); ++i) {
    for_each_pair(table, i, [&](Offset code) {
      const auto holders = static_cast<Column>(first_of(code + 1) - first_of(code));
      even[place(i)] = std::max(even[place(i)], holders);
      checkpoints.after(100);
    });
  }
  std::vector<Column> order = all_up_to(table.rows());
  std::stable_sort(order.begin(), order.end(), [&](Column a, Column b) {
    return std::tuple(even[place(a)], table.row(b).size()) <
           std::tuple(even[place(b)], table.row(a).size());
  });
  std::vector<bool> is_used(codes.size());
  for (const Column i : order) {
    bool is_free = table.row(i).size() > 1;
    for_each_pair(table, i,
                  [&](Offset code) { is_free = is_free && !is_used[place(first_of(code))]; });
    if (!is_free) continue;
    for_each_pair(table, i, [&](Offset code) { is_used[place(first_of(code))] = true; });
    whole[place(i)] = 1;
    checkpoints.after(100 * static_cast<Index>(table.row(i).size()));
  }
  return edges_of(table, whole) > edges_of(table, even) ? whole : even;
}

std::vector<Column> columns_with_edges(const SparseTable& table,
                                       std::span<const Column> denominators, double price) {
  const Transposed transposed(table);
  const SparseTable by_column = transposed.view(table.rows());
  std::vector<Index> sizes(place(table.rows()));
  std::vector<double> worth(place(table.cols));  // the edges that a column takes with it
  const auto add_to_worth = [&](Index i, double sign) {
    for (const Column c : table.row(i)) worth[place(c)] += sign * share(denominators[place(i)]);
  };
  for (Index i = 0; i < table.rows(); ++i) {
    sizes[place(i)] = static_cast<Index>(table.row(i).size());
    if (sizes[place(i)] > 1) add_to_worth(i, 1);
  }
  std::vector<Column> alive = all_up_to(table.cols), removed;
  double edges = edges_of(table, denominators);
  double best = edges - price * static_cast<double>(table.cols);
  std::size_t removed_at_best = 0;
  const std::size_t step = std::max<std::size_t>(1, alive.size() / 400);
  Checkpoints checkpoints;
  while (alive.size() > 4 + step) {
    checkpoints.after(10 * static_cast<Index>(alive.size()));
    const auto end = alive.begin() + static_cast<std::ptrdiff_t>(step);
    std::nth_element(alive.begin(), end - 1, alive.end(), [&](Column a, Column b) {
      return std::tuple(worth[place(a)], a) < std::tuple(worth[place(b)], b);
    });
    for (auto dropped = alive.begin(); dropped != end; ++dropped) {
      removed.push_back(*dropped);
      for (const Column i : by_column.row(*dropped)) {
        const double y = share(denominators[place(i)]);
        const Index size = sizes[place(i)]--;
        edges += edges_of(y, size - 1) - edges_of(y, size);
        if (size == 2) add_to_worth(i, -1);
      }
    }
    alive.erase(alive.begin(), end);
    const double value = edges - price * static_cast<double>(alive.size());
    if (value > best + 1e-9) {
      best = value;
      removed_at_best = removed.size();
    }
  }
  alive.insert(alive.end(), removed.begin() + static_cast<std::ptrdiff_t>(removed_at_best),
               removed.end());
  std::sort(alive.begin(), alive.end());
  return alive;
}

std::vector<Column> independent_nodes(const SparseTable& edges) {
  std::vector<Column> order = all_up_to(edges.rows());
  std::vector<Column> best = taken_in(edges, order);
  std::stable_sort(order.begin(), order.end(),
                   [&](Column a, Column b) { return edges.row(a).size() < edges.row(b).size(); });
  std::vector<Column> other = taken_in(edges, order);
  return other.size() > best.size() ? other : best;
}

std::vector<Column> covering_nodes(const SparseTable& edges) {
  const Transposed transposed(edges);
  const SparseTable into = transposed.view(edges.rows());
  std::vector<Index> counts(place(edges.rows()));  // of edges from each node to one that is left
  for (Index i = 0; i < edges.rows(); ++i) {
    counts[place(i)] = static_cast<Index>(edges.row(i).size());
  }
  std::vector<Column> taken;
  Checkpoints checkpoints;
  for (;;) {
    checkpoints.after(edges.rows());
    const auto most = std::max_element(counts.begin(), counts.end());
    if (most == counts.end() || *most == 0) return taken;
    const auto node = static_cast<Column>(most - counts.begin());
    *most = 0;
    taken.push_back(node);
    for (const Column other : into.row(node)) {
      if (counts[place(other)] > 0) --counts[place(other)];
    }
  }
}

}  // namespace headfit
