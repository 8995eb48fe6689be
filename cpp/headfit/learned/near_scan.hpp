// A scan of the logits. It measures by how much each row misses the tolerances, and lists the
// columns off the support near or above the row's limit; if there are too many, an even sample of
// them.
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/learned/lists.hpp"
#include "headfit/learned/scan_request.hpp"
#include "headfit/random/philox.hpp"

namespace headfit::learned {

// What a scan finds out about each row.
struct RowChecks {
  explicit RowChecks(Index n)
      : deficit(static_cast<std::size_t>(n), std::numeric_limits<float>::infinity()),
        rounding(deficit.size()) {}
  std::vector<float> deficit;  // by how much the row misses the tolerances; it meets them if <= 0
  std::vector<float> rounding;  // bound on |fl(q.k) - q.k| in this row, to first order
};

// What a scan reads and where it writes.
struct NearScan {
  const Requirements& required;
  const PaddedRows& q;
  const PaddedRows& k;
  const Philox& random;
  Index number;
  CandidateLists& lists;
  RowChecks& checks;
  // Each row looks at every column_step-th column only, and lets each stand for column_step
  // columns.
  Index column_step = 1;
  // Rows keep the columns of other classes that they list already, where these are still near their
  // limits, and the classes take turns. So lists know of all columns after as many scans as the
  // column step says.
  bool keep = false;
  std::optional<RowRange> rows = {};  // if missing, all rows
};

// Measures rows and fills their candidate lists. A column step above 1 is possible only if there
// is no mask and |logit| is not bounded.
void scan_near(const NearScan& scan, const Mask& mask, const Run& run);

}  // namespace headfit::learned
