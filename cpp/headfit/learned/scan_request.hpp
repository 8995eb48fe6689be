// Scans of the learned method that several machines make together, each for a part of the rows. What
// is found for a row depends on the request alone, not on the rows that are scanned with it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/logits/heads.hpp"
#include "headfit/pattern/target.hpp"

namespace headfit {

// What a scan depends on, besides the target and the tolerances of the fit.
struct ScanRequest {
  Heads<float> q;  // one head, n x d
  Heads<float> k;
  std::span<const Index> hits;  // those that the last scan counted in each row
  std::uint64_t seed = 0;  // the seed of the fit
  Index number = 0;  // how many scans the fit has made before this one
  Index column_step = 1;  // each row looks at every column_step-th column
  int list_cap = 2;  // the most columns that a row lists
  float reserve = 0;  // see Requirements::reserve
  // The lists that are kept (see NearScan::keep): list_cap places for each row, and how many of them
  // are in use. Both are empty where lists begin anew.
  std::span<const Column> columns = {};
  std::span<const Index> listed = {};
};

// The rows first ... end - 1.
struct RowRange {
  Index first;
  Index end;
};

// What a scan finds about some rows.
struct ScannedRows {
  ScannedRows(Index rows, int list_cap)
      : columns(static_cast<std::size_t>(rows * list_cap)),
        listed(static_cast<std::size_t>(rows)),
        hits(listed.size()),
        deficit(listed.size()),
        rounding(listed.size()) {}

  std::vector<Column> columns;  // list_cap places for each row
  std::vector<Index> listed;  // how many of them are in use
  std::vector<Index> hits;
  std::vector<float> deficit;  // see RowChecks
  std::vector<float> rounding;
};

// Makes a scan of all rows.
using Scanner = std::function<ScannedRows(const ScanRequest&)>;

// Scans some rows. Memory: copies of Q and K, and the lists of these rows.
ScannedRows scan_rows(const Target& target, const Tolerances& tolerances,
                      const ScanRequest& request, const RowRange& rows, const Run& run);

}  // namespace headfit
