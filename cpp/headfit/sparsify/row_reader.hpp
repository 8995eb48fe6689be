// For each row the best entries that it has not proposed yet, and the interface that reads more.
#pragma once

#include <vector>

#include "headfit/attention/best_of_row.hpp"
#include "headfit/sparsify/columns.hpp"

namespace headfit {

struct RowList : BestEntries {
  std::size_t next = 0;  // the first entry that was not proposed yet
  double norm = 0;       // turns the scores of the row into keys
  Index held = 0;
  double mass = 0;  // the share of the row that it holds
};

// Reads an attention matrix row by row.
class RowReader {
 public:
  virtual ~RowReader() = default;
  virtual Index rows() const = 0;
  virtual Index cols() const = 0;
  // Replaces the lists of some rows by their next best entries, at most `limit` for each row.
  // Entries that `columns` would refuse now are left out, since a column that refuses an entry
  // would also refuse it later.
  virtual void read(std::span<const Index> rows, Index limit, const Columns& columns,
                    std::vector<RowList>& lists, const Run& run) const = 0;
  // The share of its row that belongs to an entry with this key.
  virtual double share(double key) const = 0;
};

}  // namespace headfit
