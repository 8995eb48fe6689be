// For each row the best entries not yet tried, and who finds more of them.
#pragma once

#include <limits>
#include <vector>

#include "headfit/sparsify/columns.hpp"

namespace headfit {

// Keys order entries of different rows. Within a row the place in its list does.
struct Entry {
  double key;
  Column col;
};

struct RowList {
  std::vector<Entry> entries;  // best first
  std::size_t next = 0;        // the first that was not tried
  // Where a later scan goes on: after this score, or after this column at this score.
  double last_score = std::numeric_limits<double>::infinity();
  Column last_col = -1;
  bool complete = false;  // nothing comes after the list
  double norm = 0;        // what turns the row's scores into keys
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
