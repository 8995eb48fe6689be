// A greedy b-matching by weight that does not sort all entries, by deferred acceptance (Gale and
// Shapley 1962): rows propose their entries to columns, the heaviest first, and a full column gives
// up its lightest entry for a heavier one. Rows and columns rank entries by the same order.
// Therefore the outcome is unique: it is the greedy matching, whatever the order of proposals. So
// rows that have run out of listed entries can be read again many at a time.
#pragma once

#include "headfit/sparsify/row_reader.hpp"
#include "headfit/sparsify/sparsify.hpp"

namespace headfit {

// Weights are shares as the reader has them, and what was dropped is not counted.
SparseRows match(const RowReader& reader, const SparsifyOptions& options, const Run& run);

}  // namespace headfit
