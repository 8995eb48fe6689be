#include "headfit/learned/scan.hpp"

#include <array>
#include <cmath>
#include <numeric>

#include "headfit/base/errors.hpp"
#include "headfit/learned/candidate_lists.hpp"
#include "headfit/learned/settings.hpp"
#include "headfit/logits/stream.hpp"
#include "headfit/pattern/support_cursor.hpp"
#include "headfit/random/philox.hpp"

namespace headfit {
namespace learned {
namespace {

// In a scan that looks at a part of the columns, the rows of one class (modulo the column step)
// look at the columns of another class. So every key is seen by equally many rows; a key that no
// row sees would lose the gradient that holds it in place.
struct ClassPair {
  EveryNth rows, columns;
  Index first_row = 0;  // the first row of the class that is scanned, counted within the class

  Index row_at(Index place) const { return rows.at(first_row + place); }
};

// What every fold of a scan reads and where it writes.
struct RowScan {
  const Requirements& required;
  const PaddedRows& q;
  const PaddedRows& k;
  float largest_key;
  const ColumnSampling& sampling;
  ScannedRows& found;
};

// What both folds below share.
class NearRows {
 public:
  NearRows(const RowScan& scan, const ClassPair& classes)
      : scan_(scan),
        random_(scan.sampling.seed),
        classes_(classes),
        cap_(scan.found.list_cap),
        kept_(scan.sampling.keep ? static_cast<std::size_t>(Blocking<float>::tile_rows * cap_)
                                 : 0) {}

  static Index block_rows(const LogitSource<float>&) { return Blocking<float>::tile_rows; }

  void begin(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      Row& row = rows_[static_cast<std::size_t>(r)];
      const Index i = classes_.row_at(block.first + r);
      begin_row(i, row);
      if (scan_.sampling.keep) keep_near(i, row, kept_.data() + r * cap_);
      limits_[static_cast<std::size_t>(r)] = row.limit;
    }
    std::fill(limits_.begin() + block.count, limits_.end(), infinity);
  }

  void end(const RowBlock& block) {
    ScannedRows& found = scan_.found;
    for (Index r = 0; r < block.count; ++r) {
      Row& row = rows_[static_cast<std::size_t>(r)];
      const Index i = classes_.row_at(block.first + r);
      for (Index t = 0; t < row.sample.taken(); ++t) {
        row.list[t] = static_cast<Column>(classes_.columns.at(row.list[t]));
      }
      if (scan_.sampling.keep) {
        merge(i, row, kept_.data() + r * cap_);
      } else {
        found.listed[found.at(i)] = row.sample.taken();
        found.hits[found.at(i)] = row.sample.seen() * classes_.columns.step;
      }
      found.deficit[found.at(i)] = std::max(
          {row.spread_excess, row.top - row.allowed_top, -row.bottom - row.largest_allowed});
    }
  }

 protected:
  static constexpr float infinity = std::numeric_limits<float>::infinity();

  struct Row {
    SupportCursor cursor;
    EvenSample sample;
    Column* list = nullptr;
    Index kept = 0;           // how many columns are kept from the list before
    float limit = 0;          // larger logits are listed
    float allowed_top = 0;    // larger logits exceed the leak
    float top = 0;            // the largest logit off the support, where that exceeds the limit
    float largest_allowed = 0;  // the bound on |logit|
    float bottom = 0;         // the smallest logit off the support
    float spread_excess = 0;
  };

  Row& row(Index r) { return rows_[static_cast<std::size_t>(r)]; }

  int cap() const { return cap_; }

  const RowScan& scan_;
  std::array<float, Blocking<float>::tile_rows> limits_;

 private:
  void begin_row(Index i, Row& row) const {
    const Requirements& required = scan_.required;
    ScannedRows& found = scan_.found;
    const SupportCursor cursor(required.target(), i, classes_.columns);
    row = {cursor, {}, found.list(i), 0, infinity, infinity, -infinity, infinity, infinity, 0};
    // Nothing is required of an empty row.
    if (required.support_size(i) == 0) return;
    const float* query = scan_.q.row(i);
    const float largest_logit = scan_.largest_key * std::sqrt(dot(query, query, scan_.q.width()));
    const float rounding =
        static_cast<float>(scan_.q.dim() + 3) * 0x1p-24f * largest_logit + 0x1p-22f;
    found.rounding[found.at(i)] = rounding;
    const SupportState state = required.support_state(i, query, scan_.k, nullptr);
    row.allowed_top = state.lowest - required.log_inverse_leak() - 2 * rounding;
    row.limit = std::min(required.hinge(i, state) - Settings::list_slack, row.allowed_top);
    row.spread_excess = state.spread - required.spread_limit() + 2 * rounding;
    row.largest_allowed = required.max_logit() - rounding;
    const float largest = std::max(state.highest, -state.lowest);
    row.spread_excess = std::max(row.spread_excess, largest - row.largest_allowed);
    const auto number = static_cast<std::uint64_t>(scan_.sampling.number);
    const auto draw = random_(static_cast<std::uint64_t>(i), number)[0];
    row.sample = EvenSample(found.hits[found.at(i)] / classes_.columns.step, cap_, draw);
  }

  // Keeps the listed columns of other classes that are still near the limit.
  void keep_near(Index i, Row& row, Column* kept) const {
    const ScannedRows& found = scan_.found;
    for (Index t = 0; t < found.listed[found.at(i)]; ++t) {
      const Column j = row.list[t];
      if ((j - classes_.columns.first) % classes_.columns.step == 0) continue;
      const float logit = dot(scan_.q.row(i), scan_.k.row(j), scan_.k.width());
      if (!(logit > row.limit)) continue;
      kept[row.kept++] = j;
      row.top = std::max(row.top, logit);
    }
  }

  // Lists the columns that were found, and as many of those kept as there is room for. Without room
  // for all of them a list is a sample of the hits, whose number is estimated over some scans.
  void merge(Index i, const Row& row, const Column* kept) {
    const Index taken = row.sample.taken(), seen = row.sample.seen();
    const Index room = std::min(cap_ - taken, row.kept), listed = taken + room;
    for (Index t = 0; t < room; ++t) row.list[taken + t] = kept[t * row.kept / room];
    Index& hits = scan_.found.hits[scan_.found.at(i)];
    if (room < row.kept || taken < seen) {
      const double weight = std::clamp(Settings::filling_weight * static_cast<double>(seen) / cap_,
                                       Settings::least_weight, 1.0);
      const auto before = static_cast<double>(hits);
      const auto now = static_cast<double>(seen * classes_.columns.step);
      hits = std::max(listed, static_cast<Index>(before + weight * (now - before)));
    } else {
      hits = listed;
    }
    scan_.found.listed[scan_.found.at(i)] = listed;
  }

  const Philox random_;
  const ClassPair classes_;
  const int cap_;
  std::vector<Column> kept_;  // cap_ places for each row of a block
  std::array<Row, Blocking<float>::tile_rows> rows_;
};

// Lists the columns whose logits exceed the limit of their row.
class NearFold : public NearRows {
 public:
  using NearRows::NearRows;

  const float* limits(const RowBlock&) const { return limits_.data(); }

  void hits(const RowBlock&, Index r, Index col, const float* logits, std::uint32_t bits) {
    Row& row = this->row(r);
    bits = row.cursor.off_support(bits, col);
    row.sample.take(bits, col, cap(), row.list);
    for (bits &= panel_bits_above(logits, row.top); bits != 0; bits &= bits - 1) {
      row.top = std::max(row.top, logits[std::countr_zero(bits)]);
    }
  }
};

// The same where |logit| is bounded: also lists logits near or below the lower bound.
class BoundedNearFold : public NearRows {
 public:
  using NearRows::NearRows;

  void tile(const RowBlock&, const Tile<float>& tile) {
    const Pack floor = simd::fill(Settings::list_slack - scan_.required.logit_hinge());
    const Pack hidden = simd::fill(-infinity);
    for (Index r = 0; r < tile.count; ++r) {
      Row& row = this->row(r);
      float* x = tile.row(r);
      row.cursor.hide(x, tile);
      const Pack limit = simd::fill(row.limit);
      for (Index c = 0; c < tile.padded_cols(); c += lanes) {
        const Pack v = simd::load(x + c);
        const auto shown = simd::bits_above<float>(v, hidden);
        const auto below = simd::bits_above<float>(floor, v) & shown;
        const auto bits = simd::bits_above<float>(v, limit) | below;
        if (!bits) continue;
        row.top = std::max(row.top, simd::predux_max(v));
        for (auto remaining = bits; remaining; remaining &= remaining - 1) {
          row.bottom = std::min(row.bottom, x[c + std::countr_zero(remaining)]);
        }
        row.sample.take(bits, tile.col + c, cap(), row.list);
      }
    }
  }

  void entries(const RowBlock&, Index r, const Entries<float>& entries) {
    Row& row = this->row(r);
    row.cursor.hide(entries);
    const float floor = Settings::list_slack - scan_.required.logit_hinge();
    for (Index c = 0; c < entries.count(); ++c) {
      const float x = entries.data[c];
      if (x == -infinity || !(x > row.limit || x < floor)) continue;
      row.top = std::max(row.top, x);
      row.bottom = std::min(row.bottom, x);
      row.sample.take(1, entries.column(c), cap(), row.list);
    }
  }
};

float largest_norm(const PaddedRows& rows) {
  float largest = 0;
  for (Index j = 0; j < rows.rows(); ++j) {
    largest = std::max(largest, dot(rows.row(j), rows.row(j), rows.width()));
  }
  return std::sqrt(largest);
}

PaddedRows padded(const Heads<float>& x) {
  PaddedRows rows(x.rows, x.cols);
  for (Index i = 0; i < x.rows; ++i) {
    std::copy_n(x[0].row(i).data(), x.cols, rows.row(i));
  }
  return rows;
}

// Checks the kept lists of these rows alone: the others are for other scans.
void check_kept(const Target& target, const ScanRequest& request, Index first, Index end) {
  for (Index i = first; i < end; ++i) {
    const Index listed = request.listed[static_cast<std::size_t>(i)];
    if (listed < 0 || listed > request.list_cap) {
      throw InputError("listed must be in 0 ... ", request.list_cap, "; got ", listed, " in row ",
                       i);
    }
    const auto place = static_cast<std::size_t>(request.list_cap * i);
    for (const Column j : request.columns.subspan(place, static_cast<std::size_t>(listed))) {
      if (j < 0 || j >= target.n) {
        throw InputError("a scan must keep columns of A; got ", j, " in row ", i);
      }
    }
  }
}

void check_sampling(const Target& target, const ScanRequest& request) {
  const Index column_step = request.sampling.column_step;
  if (column_step < 1 || column_step > target.n) {
    throw InputError("column_step must be in 1 ... ", target.n, "; got ", column_step);
  }
  if (column_step > 1 && (!target.mask.is_open() || request.tolerances.limits_logits())) {
    throw InputError("column_step must be 1 where there is a mask or a max_logit; got ",
                     column_step);
  }
}

void check_request(const Target& target, const ScanRequest& request, Index first, Index end) {
  request.tolerances.check();
  for (const Heads<float>* x : {&request.q, &request.k}) {
    if (x->count != 1 || x->rows != target.n || x->cols != request.q.cols || x->cols < 1) {
      throw InputError("Q and K of a scan must have one row for each of the ", target.n,
                       " rows of A, and as many columns as each other");
    }
  }
  if (static_cast<Index>(request.hits.size()) != target.n) {
    throw InputError("hits must be one for each row; got ", request.hits.size());
  }
  for (const Index hits : request.hits) {
    if (hits < 0) throw InputError("hits must not be negative; got ", hits);
  }
  if (request.list_cap < 2 || request.list_cap % 2 != 0) {
    throw InputError("list_cap must be even and positive; got ", request.list_cap);
  }
  const Index places = request.sampling.keep ? target.n : 0;
  if (static_cast<Index>(request.listed.size()) != places ||
      static_cast<Index>(request.columns.size()) != places * request.list_cap) {
    throw InputError("lists that a scan keeps must have list_cap places for each of the ", target.n,
                     " rows");
  }
  if (first < 0 || end < first || end > target.n) {
    throw InputError("rows must lie in 0 ... ", target.n, "; got ", first, " ... ", end);
  }
  check_sampling(target, request);
  if (request.sampling.keep) check_kept(target, request, first, end);
}

}  // namespace

void scan_rows(const Requirements& required, const PaddedRows& q, const PaddedRows& k,
               const ColumnSampling& sampling, ScannedRows& rows, const Run& run) {
  // The random stream of scans. Streams with lower numbers belong to rows and to the start.
  constexpr std::uint64_t stream = std::uint64_t(3) << 40;
  const auto number = static_cast<std::uint64_t>(sampling.number);
  const Index step = sampling.column_step;
  const Index draw =
      sampling.keep ? sampling.number : Index(Philox(sampling.seed)(stream, number)[0]);
  const RowScan scan{required, q, k, largest_norm(k), sampling, rows};
  LogitSource<float> source;
  source.mask = required.target().mask;
  std::vector<Index> places;
  for (Index c = 0; c < step; ++c) {
    ClassPair classes{{c, step}, {(c + draw) % step, step}};
    if (rows.rows() < required.n()) {
      // How many rows of the class lie before a row.
      const auto before = [&](Index row) {
        return (std::max<Index>(row - c, 0) + step - 1) / step;
      };
      classes.first_row = before(rows.first);
      places.resize(static_cast<std::size_t>(before(rows.first + rows.rows()) - classes.first_row));
      std::iota(places.begin(), places.end(), classes.first_row);
      source.rows = std::span<const Index>(places);
    }
    source.q = q.heads(classes.rows);
    source.k = k.heads(classes.columns);
    if (required.is_bounded()) {
      stream_tiles(source, run, [&] { return BoundedNearFold(scan, classes); });
    } else {
      stream_tiles(source, run, [&] { return NearFold(scan, classes); });
    }
  }
}

void check_scanned(const ScannedRows& found, Index n, int list_cap) {
  const auto rows = static_cast<std::size_t>(n);
  if (found.first != 0 || found.list_cap != list_cap ||
      found.columns.size() != rows * static_cast<std::size_t>(list_cap) ||
      found.listed.size() != rows || found.hits.size() != rows || found.deficit.size() != rows ||
      found.rounding.size() != rows) {
    throw InputError("a scan must find something about each of the ", n, " rows");
  }
  for (Index i = 0; i < n; ++i) {
    const Index listed = found.listed[found.at(i)];
    if (listed < 0 || listed > list_cap) {
      throw InputError("a scan must list at most ", list_cap, " columns; got ", listed, " in row ",
                       i);
    }
    for (const Column j : std::span(found.list(i), static_cast<std::size_t>(listed))) {
      if (j < 0 || j >= n) {
        throw InputError("a scan must list columns of A; got ", j);
      }
    }
  }
}

}  // namespace learned

ScannedRows scan_rows(const Target& target, const ScanRequest& request, Index first, Index end,
                      const Run& run) {
  check_entries(target, run);
  learned::check_request(target, request, first, end);
  learned::Requirements required(target, request.tolerances);
  required.reserve(request.reserve);
  ScannedRows rows(first, end - first, request.list_cap);
  std::copy_n(request.hits.begin() + first, rows.rows(), rows.hits.begin());
  if (request.sampling.keep) {
    std::copy_n(request.listed.begin() + first, rows.rows(), rows.listed.begin());
    std::copy_n(request.columns.begin() + first * request.list_cap, rows.columns.size(),
                rows.columns.begin());
  }
  learned::scan_rows(required, learned::padded(request.q), learned::padded(request.k),
                     request.sampling, rows, run);
  return rows;
}

}  // namespace headfit
