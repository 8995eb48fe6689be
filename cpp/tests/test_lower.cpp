// Compares the searches for lower bounds with what their results must be.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "check.hpp"
#include "headfit/base/errors.hpp"
#include "headfit/lower/searches.hpp"
#include "headfit/lower/traces.hpp"

using namespace headfit;
using namespace headfit::test;

namespace {

struct Lists {
  std::vector<Offset> offsets{0};
  std::vector<Column> columns;

  void add(std::vector<Column> row) {
    columns.insert(columns.end(), row.begin(), row.end());
    offsets.push_back(static_cast<Offset>(columns.size()));
  }
  SparseTable table(Index cols) const { return {offsets, columns, cols}; }
};

Lists random_lists(std::mt19937& draw, int rows, int cols, unsigned one_in) {
  Lists lists;
  for (int i = 0; i < rows; ++i) {
    std::vector<Column> row;
    for (Column c = 0; c < cols; ++c) {
      if (draw() % one_in == 0) row.push_back(c);
    }
    lists.add(row);
  }
  return lists;
}

// A symmetric graph without loops.
Lists random_graph(std::mt19937& draw, int nodes, unsigned one_in) {
  std::vector<std::vector<Column>> near(static_cast<std::size_t>(nodes));
  for (Column a = 0; a < nodes; ++a) {
    for (Column b = 0; b < a; ++b) {
      if (draw() % one_in) continue;
      near[static_cast<std::size_t>(a)].push_back(b);
      near[static_cast<std::size_t>(b)].push_back(a);
    }
  }
  Lists lists;
  for (std::vector<Column>& row : near) {
    std::sort(row.begin(), row.end());
    lists.add(row);
  }
  return lists;
}

bool has(const std::vector<Column>& nodes, Column node) {
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

// A target with the entries of lists that a mask allows.
struct Entries {
  Lists lists;
  Mask mask;

  Entries(std::mt19937& draw, int n, unsigned one_in, const Mask& of) : mask(of) {
    const Lists all = random_lists(draw, n, n, one_in);
    for (Column i = 0; i < n; ++i) {
      std::vector<Column> row;
      for (const Column j : all.table(n).row(i)) {
        if (mask.allows(0, i, j, n, n)) row.push_back(j);
      }
      lists.add(row);
    }
  }
  Target target() const {
    const Index n = lists.table(0).rows();
    return {n, lists.offsets.data(), lists.columns.data(), nullptr, mask};
  }
};

// The traces of points on some sets, looked up entry by entry.
std::set<Index> slow_traces(const Target& target, bool of_columns,
                            const std::vector<Column>& sets) {
  std::set<Index> traces;
  for (Column point = 0; point < target.n; ++point) {
    Index trace = 0;
    bool is_seen = true;
    for (std::size_t at = 0; at < sets.size(); ++at) {
      const Column row = of_columns ? point : sets[at], column = of_columns ? sets[at] : point;
      const auto support = target.row_columns(row);
      is_seen = is_seen && target.mask.allows(0, row, column, target.n, target.n);
      const bool inside = std::find(support.begin(), support.end(), column) != support.end();
      trace |= Index(inside) << at;
    }
    if (is_seen) traces.insert(trace);
  }
  return traces;
}

// How many of these traces count as different, as TraceSearch::classes_with says.
Index slow_classes(std::set<Index> traces, bool of_columns, std::size_t sets, bool free) {
  const Index full = (Index(1) << sets) - 1;
  std::set<Index> classes;
  if (of_columns) traces.insert(0);
  for (const Index trace : traces) classes.insert(free ? trace : std::min(trace, full ^ trace));
  return static_cast<Index>(classes.size());
}

const std::vector<Mask>& masks() {
  static const std::vector<bool> table = [] {
    std::mt19937 draw(5);
    std::vector<bool> bits;
    for (int i = 0; i < 100; ++i) bits.push_back(draw() % 4 != 0);
    return bits;
  }();
  static bool dense[100];
  std::copy(table.begin(), table.end(), dense);
  static const std::vector<Mask> all = [] {
    Mask causal, window, array;
    causal.right = 0;
    window.left = window.right = 4;
    array.dense = dense;
    array.dense_row = 10;
    array.dense_col = 1;
    return std::vector<Mask>{Mask{}, causal, window, array};
  }();
  return all;
}

}  // namespace

TEST(shares_of_no_pair_exceed_one) {
  std::mt19937 draw(1);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const Lists lists = random_lists(draw, 30, 12, 2 + repeat % 5);
    const SparseTable table = lists.table(12);
    const std::vector<Column> denominators = edge_shares(table);
    std::map<std::pair<Column, Column>, double> sums;
    for (Index i = 0; i < table.rows(); ++i) {
      const Column part = denominators[static_cast<std::size_t>(i)];
      for (const Column a : table.row(i)) {
        for (const Column b : table.row(i)) {
          if (a < b && part) sums[{a, b}] += 1.0 / part;
        }
      }
    }
    for (const auto& [pair, sum] : sums) CHECK_THAT(sum < 1 + 1e-12, pair.first, pair.second);
  }
}

TEST(whole_shares_where_they_give_more_edges) {
  Lists lists;  // a large row without common pairs beside many copies of a small one
  lists.add({0, 1});
  lists.add({0, 1});
  lists.add({2, 3, 4, 5});
  CHECK((edge_shares(lists.table(6)) == std::vector<Column>{2, 2, 1}));
  lists.add({0, 1, 2});  // shares a pair with the first two: even shares have less
  CHECK((edge_shares(lists.table(6)) == std::vector<Column>{0, 0, 1, 1}));
}

TEST(columns_without_edges_are_dropped) {
  Lists lists;
  for (Column c = 0; c < 6; ++c) {
    for (Column other = 0; other < c; ++other) lists.add({other, c});
  }
  for (Column c = 6; c < 20; ++c) lists.add({0, c});
  const std::vector<Column> ones(static_cast<std::size_t>(lists.table(20).rows()), 1);
  CHECK((columns_with_edges(lists.table(20), ones, 2) == std::vector<Column>{0, 1, 2, 3, 4, 5}));
  CHECK(columns_with_edges(lists.table(20), ones, 0).size() == 20);
}

TEST(independent_nodes_have_no_edges) {
  std::mt19937 draw(2);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const Lists lists = random_graph(draw, 40, 2 + repeat % 8);
    const SparseTable graph = lists.table(40);
    const std::vector<Column> nodes = independent_nodes(graph);
    CHECK(std::is_sorted(nodes.begin(), nodes.end()));
    for (Column node = 0; node < 40; ++node) {
      const auto row = graph.row(node);
      const bool meets =
          std::any_of(row.begin(), row.end(), [&](Column c) { return has(nodes, c); });
      CHECK_THAT(has(nodes, node) != meets, node);  // none could be added
    }
  }
  Lists star;  // the centre is the first node, but its neighbours are more
  star.add({1, 2, 3});
  for (int i = 0; i < 3; ++i) star.add({0});
  CHECK((independent_nodes(star.table(4)) == std::vector<Column>{1, 2, 3}));
}

TEST(covering_nodes_leave_no_edge) {
  std::mt19937 draw(3);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const Lists lists = random_lists(draw, 30, 30, 3 + repeat % 8);
    const SparseTable edges = lists.table(30);
    const std::vector<Column> nodes = covering_nodes(edges);
    for (Column i = 0; i < 30; ++i) {
      for (const Column j : edges.row(i)) CHECK(has(nodes, i) || has(nodes, j));
    }
  }
}

TEST(tables_that_lead_outside_are_refused) {
  const std::vector<Column> columns{0, 3};
  const std::vector<Offset> good{0, 2}, short_of{0, 1}, falling{0, 3, 2};
  CHECK_THROWS(InputError, "columns must lie", SparseTable{good, columns, 3}.check());
  CHECK_THROWS(InputError, "offsets must rise", SparseTable{short_of, columns, 4}.check());
  CHECK_THROWS(InputError, "offsets must rise", SparseTable{falling, columns, 4}.check());
  SparseTable{good, columns, 4}.check();
}

TEST(shattered_sets_are_those_of_a_search_of_all) {
  std::mt19937 draw(7);
  for (int repeat = 0; repeat < 60; ++repeat) {
    const Entries entries(draw, 10, 2 + repeat % 3, masks()[static_cast<std::size_t>(repeat % 4)]);
    const Target target = entries.target();
    for (const bool of_columns : {true, false}) {
      const TraceSearch search(target, of_columns, 1000000);
      CHECK(search.is_complete());
      bool exists = false;
      const auto every = [&](const std::vector<Column>& sets) {
        std::set<Index> traces = slow_traces(target, of_columns, sets);
        if (of_columns) traces.insert({0, 7});
        return traces.size() == 8;
      };
      for (Column a = 0; a < 10; ++a) {
        for (Column b = a + 1; b < 10; ++b) {
          for (Column c = b + 1; c < 10; ++c) exists = exists || every({a, b, c});
        }
      }
      const std::vector<Column> sets = search.shattered(3);
      CHECK_THAT(sets.empty() != exists, repeat, " ", of_columns);
      if (!sets.empty()) CHECK(sets.size() == 3 && every(sets));
    }
  }
}

TEST(traces_are_counted_and_have_points) {
  std::mt19937 draw(8);
  for (int repeat = 0; repeat < 60; ++repeat) {
    const Entries entries(draw, 10, 2 + repeat % 3, masks()[static_cast<std::size_t>(repeat % 4)]);
    const Target target = entries.target();
    for (const bool of_columns : {true, false}) {
      const TraceSearch search(target, of_columns, 1000000);
      for (const bool free : {false, true}) {
        if (of_columns && free) continue;
        const std::vector<Column> sets{3, 1, 4, 9};
        const Index want = slow_classes(slow_traces(target, of_columns, sets), of_columns, 4, free);
        CHECK(search.classes_with({3, 1, 4}, {5, 9}, free).back() == want);
        const std::vector<Column> points = search.points(sets, free);
        CHECK(static_cast<Index>(points.size()) + of_columns == want);
        CHECK(std::is_sorted(points.begin(), points.end()));
      }
    }
  }
}

TEST(points_in_many_sets_are_left_out) {
  Lists lists;
  for (Column i = 0; i < 6; ++i) lists.add(i ? std::vector<Column>{0, i} : std::vector<Column>{0});
  const Target target{6, lists.offsets.data(), lists.columns.data(), nullptr, {}};
  const TraceSearch all(target, false, 1000), few(target, false, 20);
  CHECK(all.is_complete() && !few.is_complete());
  CHECK(all.near(1).size() == 6);
  CHECK(few.near(1) == std::vector<Column>{1});
}

// Whether some order of the columns has each row at one of its ends.
bool slow_order_exists(const SparseTable& table) {
  std::vector<Column> order(static_cast<std::size_t>(table.cols));
  std::iota(order.begin(), order.end(), Column(0));
  do {
    bool good = true;
    for (Index i = 0; i < table.rows(); ++i) {
      const auto own = table.row(i);
      const auto is_own = [&](Column c) { return std::binary_search(own.begin(), own.end(), c); };
      good = good && (std::is_partitioned(order.begin(), order.end(), is_own) ||
                      std::is_partitioned(order.rbegin(), order.rend(), is_own));
    }
    if (good) return true;
  } while (std::next_permutation(order.begin(), order.end()));
  return false;
}

TEST(orders_exist_unless_rows_and_columns_conflict) {
  std::mt19937 draw(9);
  Index orders = 0;
  for (int repeat = 0; repeat < 300; ++repeat) {
    const Lists lists = random_lists(draw, 1 + repeat % 5, 5, 2 + repeat % 4);
    const SparseTable table = lists.table(5);
    const bool exists = slow_order_exists(table);
    const auto conflict = order_conflict(table);
    CHECK_THAT(conflict.has_value() != exists, repeat);
    orders += exists;
    if (!conflict) continue;
    std::set<Index> traces;
    for (const Column c : conflict->columns) {
      Index trace = 0;
      for (std::size_t at = 0; at < conflict->rows.size(); ++at) {
        const auto own = table.row(conflict->rows[at]);
        trace |= Index(std::binary_search(own.begin(), own.end(), c)) << at;
      }
      traces.insert(trace);
    }
    CHECK_THAT(traces.size() == conflict->columns.size(), repeat);
    CHECK(conflict->columns.size() == (conflict->rows.size() == 2 ? 4u : 3u));
  }
  CHECK(orders > 20 && orders < 280);
  CHECK(!order_conflict(Lists().table(0)));
}

TEST(columns_that_are_taken_are_told_apart) {
  std::mt19937 draw(10);
  for (int repeat = 0; repeat < 60; ++repeat) {
    const Entries entries(draw, 10, 2 + repeat % 6, masks()[static_cast<std::size_t>(repeat % 4)]);
    const Target target = entries.target();
    const auto attends = [&](Column i, Column j) {
      const auto own = target.row_columns(i);
      return std::find(own.begin(), own.end(), j) != own.end();
    };
    const auto is_apart = [&](Column a, Column b) {
      for (Column i = 0; i < 10; ++i) {
        const bool sees =
            target.mask.allows(0, i, a, 10, 10) && target.mask.allows(0, i, b, 10, 10);
        if (sees && attends(i, a) != attends(i, b)) return true;
      }
      return false;
    };
    const std::vector<Column> taken = columns_apart(target, 1, 9);
    for (const Column a : taken) {
      CHECK(a >= 1 && a < 9);
      for (const Column b : taken) CHECK_THAT(a == b || is_apart(a, b), repeat, " ", a, " ", b);
    }
    CHECK(!taken.empty());
  }
}
