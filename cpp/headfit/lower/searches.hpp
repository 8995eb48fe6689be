// Searches for lower bounds on the head size. They look for evidence, which others check: what they
// return may be poor, but never makes a claim wrong.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "headfit/lower/sparse_table.hpp"
#include "headfit/pattern/target.hpp"

namespace headfit {

// Shares of rows in the edges of a graph on the columns: for every pair of columns the shares of
// the rows with both of them add up to 1 at most. Returns denominators, 0 for a share of 0. Shares
// are even (1 / the most rows with one of the row's pairs) or whole (1 for rows without common
// pairs, small rows first), whichever gives more edges: the sum of share * (columns - 1).
std::vector<Column> edge_shares(const SparseTable& table);

// The columns that are left once those with few edges are removed while that increases
// edges - price * columns, with these denominators of shares.
std::vector<Column> columns_with_edges(const SparseTable& table,
                                       std::span<const Column> denominators, double price);

// Nodes without edges between them, as many as two greedy orders find; row i has the neighbours of
// node i, and an edge is in both of its rows.
std::vector<Column> independent_nodes(const SparseTable& edges);

// Nodes without which no edge is left: the node with the most edges from it is taken until then.
std::vector<Column> covering_nodes(const SparseTable& edges);

// Rows of which no order of the columns has each at one of its ends, and columns that show it: two
// rows that cut four columns in all four ways, or three rows each of which separates one of three
// columns from the other two. Nothing where there is an order.
struct OrderConflict {
  std::vector<Column> rows, columns;
};
std::optional<OrderConflict> order_conflict(const SparseTable& table);

// Columns first ... stop - 1 of a target, of which every two are told apart by a row that sees both
// and attends to one of them; taken greedily, in ascending order.
std::vector<Column> columns_apart(const Target& target, Index first, Index stop);

}  // namespace headfit
