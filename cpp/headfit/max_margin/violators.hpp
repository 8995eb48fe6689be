// Finds, for each row, the largest logits off the support above a threshold: the violated
// constraints that cutting planes ask of a scan.
#pragma once

#include <span>
#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/logits/pack.hpp"
#include "headfit/pattern/target.hpp"
#include "headfit/row_qp/row_problem.hpp"

namespace headfit {

// What a scan looks for. Thresholds and lists have one entry for each row that the source asks for,
// in the same order.
struct ViolatorSearch {
  const Target& target;
  const LogitSource<double>& source;
  std::span<const double> thresholds;
  Index limit;  // how many columns a list may have
  std::span<std::vector<Violator>> lists;
  Index block_rows = Blocking<double>::tile_rows;
};

// Scans all keys, which are packed already.
void find_violators(const ViolatorSearch& search, const PackedKeys<double>& keys, const Run& run);
// The same; packs the keys for this one scan.
void find_violators(const ViolatorSearch& search, const Run& run);

}  // namespace headfit
