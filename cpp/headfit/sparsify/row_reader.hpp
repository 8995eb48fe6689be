// For each row the best entries not yet tried, and who finds more of them.
#pragma once

#include <vector>

#include "headfit/attention/best_of_row.hpp"
#include "headfit/sparsify/columns.hpp"

namespace headfit {

struct RowList : BestEntries {
  std::size_t next = 0;  // the first entry that was not tried
  double norm = 0;       // what turns the row's scores into keys
  Index held = 0;
  double mass = 0;  // share of the row that is held
};

// Reads an attention matrix row by row.
class RowReader {
 public:
  virtual ~RowReader() = default;
  virtual Index rows() const = 0;
  virtual Index cols() const = 0;
  // Replaces the lists of some rows by their next entries, at most `limit` of those that
  // `columns` would take now: what it refuses once it refuses for ever.
  virtual void read(std::span<const Index> rows, Index limit, const Columns& columns,
                    std::vector<RowList>& lists, const Run& run) const = 0;
  // The share of its row that an entry with this key has.
  virtual double share(double key) const = 0;
};

}  // namespace headfit
