// Greedy b-matching by weight without sorting all entries, by deferred acceptance: rows
// propose their entries from the heaviest down, and a column that is full gives up its
// lightest for a heavier one (Gale and Shapley 1962). Rows and columns rank entries by one
// common order, so the outcome is unique: the greedy one, whatever the order of proposals.
// That is why rows that run out of listed entries can be read again many at a time.
#pragma once

#include "headfit/sparsify/row_reader.hpp"
#include "headfit/sparsify/sparsify.hpp"

namespace headfit {

SparseRows match(const RowReader& reader, const SparsifyOptions& options, const Run& run);

}  // namespace headfit
