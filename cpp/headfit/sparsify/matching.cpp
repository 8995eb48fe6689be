#include "headfit/sparsify/matching.hpp"

#include <numeric>

#include "headfit/base/checkpoint.hpp"
#include "headfit/base/errors.hpp"

namespace headfit {
namespace {

// A row counts as having reached its share if rounding is all that is missing.
constexpr double mass_slack = 1e-12;
constexpr Index first_list = 64;  // entries read per row at first, if only a share bounds the row
constexpr Index listed_at_once = 1 << 22;  // entries of all rows, when rows are read again

class Matching {
 public:
  Matching(const RowReader& reader, const SparsifyOptions& options, const Run& run)
      : reader_(reader),
        options_(options),
        run_(run),
        columns_(reader.cols(), options.per_column),
        lists_(static_cast<std::size_t>(reader.rows())) {}

  SparseRows solve() {
    std::vector<Index> waiting(lists_.size());
    std::iota(waiting.begin(), waiting.end(), Index(0));
    Index limit = first_limit();
    read(waiting, limit);
    remember_best();
    set_exempt();
    while (!waiting.empty()) {
      for (const Index row : waiting) settle(row);
      waiting.clear();
      for (Index row = 0; row < reader_.rows(); ++row) {
        if (!satisfied(list(row)) && !list(row).complete) waiting.push_back(row);
      }
      if (waiting.empty()) break;
      const Index budget = std::max(listed_at_once, 32 * reader_.rows());
      // A row bounded by a share may need many more entries; one bounded by a count lacks a few.
      const Index growth = options_.per_row > 0 ? 4 : 16;
      limit = std::min(growth * limit, budget / static_cast<Index>(waiting.size()));
      read(waiting, limit);
    }
    if (options_.on_empty != OnEmpty::leave) fill_empty();
    return result();
  }

 private:
  RowList& list(Index row) { return lists_[static_cast<std::size_t>(row)]; }

  void read(const std::vector<Index>& rows, Index limit) {
    limit = std::clamp<Index>(limit, 1, std::max<Index>(1, reader_.cols()));
    reader_.read(rows, limit, columns_, lists_, run_);
    for (const Index row : rows) list(row).next = 0;
  }

  Index first_limit() const {
    if (options_.per_row == 0) return first_list;
    // If columns are bounded, they refuse some of a row's best entries.
    const Index more = std::min<Index>(3 * options_.per_row + 8, 64);
    return options_.per_row + (options_.per_column == 0 ? 0 : more);
  }

  void remember_best() {
    best_.assign(lists_.size(), {0, -1});
    for (std::size_t i = 0; i < lists_.size(); ++i) {
      if (!lists_[i].entries.empty()) best_[i] = lists_[i].entries.front();
    }
  }

  bool satisfied(const RowList& row) const {
    if (options_.per_row > 0 && row.held >= options_.per_row) return true;
    return options_.mass > 0 && row.mass > 0 && row.mass >= options_.mass - mass_slack;
  }

  // Exempts sinks: columns that more than half of the rows would keep an entry in if columns were
  // not bounded.
  void set_exempt() {
    for (const Column col : options_.exempt) columns_.set_free(col);
    if (!options_.exempt_sinks || options_.per_column == 0) return;
    std::vector<Index> wanted(static_cast<std::size_t>(reader_.cols()), 0);
    Index present = 0;
    for (const RowList& row : lists_) {
      RowList kept;  // only its counts are used
      present += !row.entries.empty();
      for (const Entry& e : row.entries) {
        if (satisfied(kept)) break;
        ++kept.held;
        kept.mass += reader_.share(e.key);
        ++wanted[static_cast<std::size_t>(e.col)];
      }
    }
    for (std::size_t j = 0; j < wanted.size(); ++j) {
      if (2 * wanted[j] > present && wanted[j] > options_.per_column) {
        columns_.set_free(static_cast<Column>(j));
      }
    }
  }

  // Lets a row, and every row that loses a place to another one, propose entries until it is
  // satisfied or has no more entries in its list.
  void settle(Index first) {
    stack_.push_back(first);
    while (!stack_.empty()) {
      checkpoints_.after(32);
      const Index at = stack_.back();
      RowList& row = list(at);
      if (satisfied(row) || row.next == row.entries.size()) {
        stack_.pop_back();
        continue;
      }
      const Entry entry = row.entries[row.next++];
      const Proposal proposal{entry.key, static_cast<Column>(at)};
      if (!columns_.would_take(entry.col, proposal)) continue;
      ++row.held;
      row.mass += reader_.share(entry.key);
      if (const auto lost = columns_.take(entry.col, proposal)) {
        RowList& loser = list(lost->row);
        --loser.held;
        loser.mass -= reader_.share(lost->key);
        stack_.push_back(lost->row);
      }
    }
  }

  void fill_empty() {
    for (Index i = 0; i < reader_.rows(); ++i) {
      const Entry& best = best_[static_cast<std::size_t>(i)];
      if (list(i).held > 0 || best.col < 0) continue;
      if (options_.on_empty == OnEmpty::raise) {
        throw InputError("row ", i, " keeps nothing: at most ", options_.per_column,
                         " entries a column leave it no room (its largest entry is in column ",
                         best.col,
                         "); exempt columns, raise per_column, or use on_empty=\"keep-max\"");
      }
      columns_.add(best.col, {best.key, static_cast<Column>(i)});
      list(i).held = 1;
    }
  }

  // Goes through the columns in order and appends each to its rows, which gives compressed rows
  // with sorted columns.
  SparseRows result() {
    SparseRows out;
    const std::size_t n = lists_.size();
    out.offsets.assign(n + 1, 0);
    for (std::size_t i = 0; i < n; ++i) out.offsets[i + 1] = out.offsets[i] + lists_[i].held;
    out.columns.resize(static_cast<std::size_t>(out.offsets[n]));
    out.weights.resize(out.columns.size());
    std::vector<Offset> place(out.offsets.begin(), out.offsets.end() - 1);
    for (Index j = 0; j < columns_.count(); ++j) {
      const auto col = static_cast<Column>(j);
      for (const Proposal& p : columns_.held(col)) {
        const auto at = static_cast<std::size_t>(place[static_cast<std::size_t>(p.row)]++);
        out.columns[at] = col;
        out.weights[at] = reader_.share(p.key);
      }
      if (options_.per_column > 0 && columns_.is_free(col)) out.exempt.push_back(col);
    }
    return out;
  }

  const RowReader& reader_;
  const SparsifyOptions& options_;
  const Run& run_;
  Columns columns_;
  std::vector<RowList> lists_;
  std::vector<Entry> best_;
  std::vector<Index> stack_;
  Checkpoints checkpoints_;
};

void check(const RowReader& reader, const SparsifyOptions& options) {
  if (options.per_row < 0 || options.per_column < 0 || !(options.mass >= 0 && options.mass <= 1)) {
    throw InputError("per_row and per_column must be positive, and mass lie in (0, 1]");
  }
  if (options.per_row == 0 && options.mass == 0) throw InputError("give per_row or mass");
  for (const Column col : options.exempt) {
    if (col < 0 || col >= reader.cols()) {
      throw InputError("exempt_columns must lie in 0 ... ", reader.cols() - 1, "; got ", col);
    }
  }
}

}  // namespace

SparseRows match(const RowReader& reader, const SparsifyOptions& options, const Run& run) {
  check(reader, options);
  return Matching(reader, options, run).solve();
}

}  // namespace headfit
