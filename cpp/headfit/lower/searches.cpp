#include "headfit/lower/searches.hpp"

#include <algorithm>
#include <bit>
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

// Columns as bits, and the row that they belong to.
struct Bits {
  std::vector<std::uint64_t> words;
  Column row;
};

// The columns of a row; all others if they include one that is left out.
Bits bits_of(const SparseTable& table, Column row, Column left_out) {
  Bits bits{std::vector<std::uint64_t>(place(table.cols + 63) / 64), row};
  const auto own = table.row(row);
  if (std::binary_search(own.begin(), own.end(), left_out)) {
    for (Index c = 0; c < table.cols; ++c) bits.words[place(c / 64)] |= std::uint64_t(1) << c % 64;
  }
  for (const Column c : own) bits.words[place(c / 64)] ^= std::uint64_t(1) << c % 64;
  return bits;
}

// The lowest column in a that is in b, or that is not; -1 for none.
Column lowest(const Bits& a, const Bits& b, bool in_b) {
  for (std::size_t at = 0; at < a.words.size(); ++at) {
    const std::uint64_t common = a.words[at] & (in_b ? b.words[at] : ~b.words[at]);
    if (common) return static_cast<Column>(64 * at) + std::countr_zero(common);
  }
  return -1;
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

// Choose a column and replace every row with it by its complement. In an order, the sets on one side
// of this column are nested, and those on different sides disjoint: from small to large they form two
// chains, of which `tops` has the last sets.
std::optional<OrderConflict> order_conflict(const SparseTable& table) {
  std::vector<Index> counts(place(table.cols));
  for (const Column c : table.columns) ++counts[place(c)];
  const auto rarest = std::min_element(counts.begin(), counts.end());
  if (rarest == counts.end()) return std::nullopt;
  const auto centre = static_cast<Column>(rarest - counts.begin());
  std::vector<Index> sizes(place(table.rows()));
  for (Index i = 0; i < table.rows(); ++i) {
    const auto own = table.row(i);
    const bool has_centre = std::binary_search(own.begin(), own.end(), centre);
    const auto size = static_cast<Index>(own.size());
    sizes[place(i)] = has_centre ? table.cols - size : size;
  }
  std::vector<Column> order = all_up_to(table.rows());
  std::erase_if(order, [&](Column i) { return sizes[place(i)] == 0; });
  std::stable_sort(order.begin(), order.end(),
                   [&](Column a, Column b) { return sizes[place(a)] < sizes[place(b)]; });
  std::vector<Bits> tops;
  Checkpoints checkpoints;
  for (const Column i : order) {
    checkpoints.after(table.cols);
    Bits bits = bits_of(table, i, centre);
    std::vector<Bits> apart;
    for (const Bits& top : tops) {
      const Column common = lowest(top, bits, true);
      if (common < 0) {
        apart.push_back(top);
      } else if (const Column only = lowest(top, bits, false); only >= 0) {
        return OrderConflict{{top.row, i}, {common, only, lowest(bits, top, false), centre}};
      }
    }
    if (tops.size() == 2 && apart.size() != 1) {
      const Column third = apart.empty() ? centre : lowest(bits, bits, true);
      return OrderConflict{{tops[0].row, tops[1].row, i},
                           {lowest(tops[0], tops[0], true), lowest(tops[1], tops[1], true), third}};
    }
    tops = std::move(apart);
    tops.push_back(std::move(bits));
  }
  return std::nullopt;
}

std::vector<Column> columns_apart(const Target& target, Index first, Index stop) {
  const Index n = target.n;
  const SparseTable supports{{target.offsets, place(n + 1)},
                             {target.columns, place(target.nonzeros())},
                             n};
  const Transposed transposed(supports);
  const SparseTable attending = transposed.view(n);
  const auto attends = [&](Column row, Column column) {
    const auto own = supports.row(row);
    return std::binary_search(own.begin(), own.end(), column);
  };
  // Of a row that attends to one column.
  const auto tells = [&](Column row, Column off) {
    return !attends(row, off) && target.mask.allows(0, row, off, n, n);
  };
  Checkpoints checkpoints;
  const auto is_apart = [&](Column a, Column b) {
    const auto of_a = attending.row(a), of_b = attending.row(b);
    checkpoints.after(100 * static_cast<Index>(of_a.size() + of_b.size()));
    return std::any_of(of_a.begin(), of_a.end(), [&](Column i) { return tells(i, b); }) ||
           std::any_of(of_b.begin(), of_b.end(), [&](Column i) { return tells(i, a); });
  };
  std::vector<Column> order, empty, taken;
  for (auto j = static_cast<Column>(first); j < stop; ++j) {
    (attending.row(j).empty() ? empty : order).push_back(j);
  }
  // Columns without rows are not told apart from each other; one of them may come last.
  if (!empty.empty()) order.push_back(empty.front());
  for (const Column j : order) {
    const auto with_j = [&](Column x) { return is_apart(j, x); };
    bool good;
    if (attending.row(j).empty() || target.mask.has_pattern()) {
      good = std::all_of(taken.begin(), taken.end(), with_j);
    } else {
      // The last row of the column tells it from all that it sees and does not attend to.
      const Column row = attending.row(j).back();
      const ColumnRange open = target.mask.range(0, row, n, n);
      const auto begin = std::lower_bound(taken.begin(), taken.end(), open.begin);
      const auto end = std::lower_bound(begin, taken.end(), open.end);
      const auto own = supports.row(row);
      good = std::all_of(taken.begin(), begin, with_j) && std::all_of(end, taken.end(), with_j) &&
             std::all_of(own.begin(), own.end(), [&](Column x) {
        return !std::binary_search(taken.begin(), taken.end(), x) || is_apart(j, x);
      });
    }
    if (good) taken.push_back(j);
  }
  return taken;
}

}  // namespace headfit
