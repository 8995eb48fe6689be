// A scan of all logits that measures by how much each row misses the tolerances and lists the
// off-support columns near or above its limit: an even sample, if there are many.
#pragma once

#include <limits>
#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/learned/lists.hpp"
#include "headfit/random/philox.hpp"

namespace headfit::learned {

// What a scan leaves for each row.
struct RowChecks {
  explicit RowChecks(Index n)
      : deficit(static_cast<std::size_t>(n), std::numeric_limits<float>::infinity()),
        rounding(deficit.size()) {}
  std::vector<float> deficit;   // by how much the row misses a tolerance; met when <= 0
  std::vector<float> rounding;  // bound on |fl(q.k) - q.k| in this row, to first order
};

// What a scan reads and where it writes.
struct NearScan {
  const Requirements& required;
  const PaddedRows& q;
  const PaddedRows& k;
  const Philox& random;
  Index number;
  Lists& lists;
  RowChecks& checks;
  // Each row looks at every column_step-th column only, and counts each for column_step of them.
  Index column_step = 1;
};

// Measures every row, and lists anew what is near its limit. Rows can look at some columns only
// where there is no mask and |logit| is not bounded.
void scan_near(const NearScan& scan, const Mask& mask, const Run& run);

}  // namespace headfit::learned
