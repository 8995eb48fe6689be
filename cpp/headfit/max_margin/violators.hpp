// For each row the largest logits off the support above a threshold: what cutting planes ask of a
// scan.
#pragma once

#include <span>
#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/logits/packed_keys.hpp"
#include "headfit/pattern/target.hpp"
#include "headfit/row_qp/row_problem.hpp"

namespace headfit {

// What a scan looks for. Thresholds and lists are indexed by the row's place in the source's rows.
struct ViolatorSearch {
  const Target& target;
  const LogitSource<double>& source;
  std::span<const double> thresholds;
  Index limit;  // of each list
  std::span<std::vector<Violator>> lists;
  Index block_rows = Blocking<double>::tile_rows;
};

// One scan of all keys, which are packed already.
void find_violators(const ViolatorSearch& search, detail::PackedKeys<double>& keys,
                    const Run& run);
// The same; packs the keys for this scan.
void find_violators(const ViolatorSearch& search, const Run& run);

}  // namespace headfit
