// Scans of the logits. A scan measures by how much each row misses the tolerances, and lists the
// columns off the support near or above the row's limit; if there are too many, an even sample of
// them. What it finds for a row depends on the fit alone, not on the rows that are scanned with it,
// so several machines may share a scan.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/learned/requirements.hpp"

namespace headfit {

// What scans have found about the rows `first` ... `first` + rows - 1. A scan reads what the one
// before it found, and writes in its place.
struct ScannedRows {
  ScannedRows(Index first_row, Index rows, int cap)
      : first(first_row),
        list_cap(cap),
        columns(static_cast<std::size_t>(rows * cap)),
        listed(static_cast<std::size_t>(rows)),
        hits(listed.size()),
        deficit(listed.size(), std::numeric_limits<float>::infinity()),
        rounding(listed.size()) {}

  Index rows() const { return static_cast<Index>(listed.size()); }
  std::size_t at(Index row) const { return static_cast<std::size_t>(row - first); }
  const Column* list(Index row) const { return columns.data() + (row - first) * list_cap; }
  Column* list(Index row) { return columns.data() + (row - first) * list_cap; }
  // Empties the lists. How many hits the rows have is not known then; the guess is half of n columns.
  void forget_lists(Index n) {
    std::fill(listed.begin(), listed.end(), 0);
    std::fill(hits.begin(), hits.end(), n / 2);
  }

  Index first;
  int list_cap;
  std::vector<Column> columns;  // the lists: list_cap places for each row
  std::vector<Index> listed;  // how many of them are in use
  // How many columns off the support exceeded the limit, listed or not. It is an estimate if the
  // scan looked at a part of the columns only.
  std::vector<Index> hits;
  std::vector<float> deficit;  // by how much the row misses the tolerances; it meets them if <= 0
  std::vector<float> rounding;  // bound on |fl(q.k) - q.k| in this row, to first order
};

// Which columns the rows of a scan look at.
struct ColumnSampling {
  std::uint64_t seed = 0;  // the seed of the fit
  Index number = 0;  // how many scans the fit has made before this one
  // Each row looks at every column_step-th column only, and lets each stand for column_step columns.
  // Above 1 only if there is no mask and |logit| is not bounded.
  Index column_step = 1;
  // Rows keep the columns of other classes that they list already, where these are still near their
  // limits, and the classes take turns. So lists know of all columns after as many scans as the
  // column step says.
  bool keep = false;
};

// What a scan depends on, besides the target: for scans that are made elsewhere.
struct ScanRequest {
  Tolerances tolerances;  // those of the stage
  float reserve = 0;  // see Requirements::reserve
  Heads<float> q;  // one head, n x d
  Heads<float> k;
  ColumnSampling sampling;
  int list_cap = 2;  // the most columns that a row lists
  std::span<const Index> hits;  // those that the last scan counted in each row
  // The lists of all rows, as in ScannedRows, if the sampling keeps them; otherwise empty.
  std::span<const Column> columns = {};
  std::span<const Index> listed = {};
};

// Makes a scan of all rows.
using Scanner = std::function<ScannedRows(const ScanRequest&)>;

// Scans the rows first ... end - 1. Memory: copies of Q and K, and the lists of these rows.
ScannedRows scan_rows(const Target& target, const ScanRequest& request, Index first, Index end,
                      const Run& run);

namespace learned {

// The same for rows whose lists are at hand.
void scan_rows(const Requirements& required, const PaddedRows& q, const PaddedRows& k,
               const ColumnSampling& sampling, ScannedRows& rows, const Run& run);

// Throws unless these could be the scanned rows of a fit.
void check_scanned(const ScannedRows& found, Index n, int list_cap);

}  // namespace learned
}  // namespace headfit
