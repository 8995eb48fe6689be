#include "headfit/learned/near_scan.hpp"

#include <array>
#include <numeric>

#include "headfit/learned/even_sample.hpp"
#include "headfit/learned/recipe.hpp"
#include "headfit/logits/stream.hpp"
#include "headfit/pattern/support_cursor.hpp"

namespace headfit::learned {
namespace {

// In a scan that looks at a part of the columns, the rows of one class (modulo the column step)
// look at the columns of another class. So every key is seen by equally many rows; a key that no
// row sees would lose the gradient that holds it in place.
struct ScanPart {
  EveryNth rows, columns;
  Index first_row = 0;  // the first row of the class that is scanned, counted within the class

  Index row_at(Index place) const { return rows.at(first_row + place); }
};

// What both folds below share.
class NearRows {
 public:
  NearRows(const NearScan& scan, const ScanPart& part, float largest_key)
      : required_(scan.required),
        lists_(scan.lists),
        cap_(scan.lists.cap()),
        q_(scan.q),
        k_(scan.k),
        largest_key_(largest_key),
        random_(scan.random),
        scan_(scan.number),
        part_(part),
        keep_(scan.keep),
        checks_(scan.checks),
        kept_(scan.keep ? static_cast<std::size_t>(Blocking<float>::tile_rows * cap_) : 0) {}

  static Index block_rows(const LogitSource<float>&) { return Blocking<float>::tile_rows; }

  void begin(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      Row& row = rows_[static_cast<std::size_t>(r)];
      begin_row(part_.row_at(block.first + r), row);
      if (keep_) keep_near(part_.row_at(block.first + r), row, kept_.data() + r * cap_);
      limits_[static_cast<std::size_t>(r)] = row.limit;
    }
    std::fill(limits_.begin() + block.count, limits_.end(), infinity);
  }

  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      Row& row = rows_[static_cast<std::size_t>(r)];
      const Index i = part_.row_at(block.first + r);
      const auto at = static_cast<std::size_t>(i);
      for (Index t = 0; t < row.sample.taken(); ++t) {
        row.list[t] = static_cast<Column>(part_.columns.at(row.list[t]));
      }
      if (keep_) {
        merge(i, row, kept_.data() + r * cap_);
      } else {
        lists_.set_others(i, row.sample.taken(), row.sample.seen() * part_.columns.step);
      }
      checks_.deficit[at] =
          std::max({row.spread_excess, row.top - row.allowed_top, -row.bottom - row.allowed_size});
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
    float allowed_size = 0;   // the bound on |logit|
    float bottom = 0;         // the smallest logit off the support
    float spread_excess = 0;
  };

  Row& row(Index r) { return rows_[static_cast<std::size_t>(r)]; }

  const Requirements& required_;
  CandidateLists& lists_;
  const int cap_;
  std::array<float, Blocking<float>::tile_rows> limits_;

 private:
  void begin_row(Index i, Row& row) const {
    const SupportCursor cursor(required_.target(), i, part_.columns);
    row = {cursor, {}, lists_.others(i), 0, infinity, infinity, -infinity, infinity, infinity, 0};
    // Nothing is required of an empty row.
    if (required_.support_size(i) == 0) return;
    const float* query = q_.row(i);
    const float size = largest_key_ * std::sqrt(dot(query, query, q_.width()));
    const float rounding = static_cast<float>(q_.dim() + 3) * 0x1p-24f * size + 0x1p-22f;
    checks_.rounding[static_cast<std::size_t>(i)] = rounding;
    const SupportState state = required_.support_state(i, query, k_, nullptr);
    row.allowed_top = state.lowest - required_.log_inverse_leak() - 2 * rounding;
    row.limit = std::min(required_.hinge(i, state) - list_slack, row.allowed_top);
    row.spread_excess = state.spread - required_.spread_limit() + 2 * rounding;
    row.allowed_size = required_.max_logit() - rounding;
    const float largest = std::max(state.highest, -state.lowest);
    row.spread_excess = std::max(row.spread_excess, largest - row.allowed_size);
    const auto draw = random_(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(scan_))[0];
    row.sample = EvenSample(lists_.hits(i) / part_.columns.step, cap_, draw);
  }

  // Keeps the listed columns of other classes that are still near the limit.
  void keep_near(Index i, Row& row, Column* kept) const {
    for (Index t = 0; t < lists_.listed(i); ++t) {
      const Column j = row.list[t];
      if ((j - part_.columns.first) % part_.columns.step == 0) continue;
      const float logit = dot(q_.row(i), k_.row(j), k_.width());
      if (!(logit > row.limit)) continue;
      kept[row.kept++] = j;
      row.top = std::max(row.top, logit);
    }
  }

  // Lists the columns that were found, and as many of those kept as there is room for. Without room
  // for all of them a list is a sample of the hits, whose number is estimated over some scans.
  void merge(Index i, const Row& row, const Column* kept) {
    const Index taken = row.sample.taken(), found = row.sample.seen();
    const Index room = std::min(cap_ - taken, row.kept), listed = taken + room;
    for (Index t = 0; t < room; ++t) row.list[taken + t] = kept[t * row.kept / room];
    Index hits = listed;
    if (room < row.kept || taken < found) {
      const double weight = std::clamp(2.0 * static_cast<double>(found) / cap_, 0.25, 1.0);
      const auto before = static_cast<double>(lists_.hits(i));
      const auto now = static_cast<double>(found * part_.columns.step);
      hits = std::max(listed, static_cast<Index>(before + weight * (now - before)));
    }
    lists_.set_others(i, listed, hits);
  }

  const PaddedRows& q_;
  const PaddedRows& k_;
  float largest_key_;
  const Philox& random_;
  Index scan_;
  ScanPart part_;
  bool keep_;
  RowChecks& checks_;
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
    row.sample.take(bits, col, cap_, row.list);
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
    const Pack floor = simd::fill(list_slack - required_.logit_hinge());
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
        for (auto rest = bits; rest; rest &= rest - 1) {
          row.bottom = std::min(row.bottom, x[c + std::countr_zero(rest)]);
        }
        row.sample.take(bits, tile.col + c, cap_, row.list);
      }
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

}  // namespace

void scan_near(const NearScan& scan, const Mask& mask, const Run& run) {
  // The random stream of scans. Streams with lower numbers belong to rows and to the start.
  constexpr std::uint64_t stream = std::uint64_t(3) << 40;
  const float largest = largest_norm(scan.k);
  const Index draw = scan.keep
                         ? scan.number
                         : Index(scan.random(stream, static_cast<std::uint64_t>(scan.number))[0]);
  LogitSource<float> source;
  source.mask = mask;
  std::vector<Index> places;
  for (Index c = 0; c < scan.column_step; ++c) {
    ScanPart part{{c, scan.column_step}, {(c + draw) % scan.column_step, scan.column_step}};
    if (scan.rows) {
      // How many rows of the class lie before a row.
      const auto before = [&](Index row) {
        return (std::max<Index>(row - c, 0) + scan.column_step - 1) / scan.column_step;
      };
      part.first_row = before(scan.rows->first);
      places.resize(static_cast<std::size_t>(before(scan.rows->end) - part.first_row));
      std::iota(places.begin(), places.end(), part.first_row);
      source.rows = std::span<const Index>(places);
    }
    source.q = scan.q.heads(part.rows);
    source.k = scan.k.heads(part.columns);
    if (scan.required.is_bounded()) {
      stream_tiles(source, run, [&] { return BoundedNearFold(scan, part, largest); });
    } else {
      stream_tiles(source, run, [&] { return NearFold(scan, part, largest); });
    }
  }
}

}  // namespace headfit::learned
