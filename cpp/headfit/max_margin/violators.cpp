#include "headfit/max_margin/violators.hpp"

#include <bit>
#include <limits>

#include "headfit/base/best_few.hpp"
#include "headfit/logits/stream.hpp"
#include "headfit/pattern/support_cursor.hpp"

namespace headfit {
namespace {

class ViolatorFold {
 public:
  explicit ViolatorFold(const ViolatorSearch& search) : search_(search) {}

  Index block_rows(const LogitSource<double>&) const { return search_.block_rows; }

  void begin(const RowBlock& block) {
    cursors_.clear();
    best_.resize(std::max(best_.size(), static_cast<std::size_t>(block.count)));
    const Index padded = round_up(block.count, Blocking<double>::row_group);
    limits_.assign(static_cast<std::size_t>(padded), std::numeric_limits<double>::infinity());
    for (Index r = 0; r < block.count; ++r) {
      cursors_.emplace_back(search_.target, search_.source.row_at(block.first + r));
      limits_[static_cast<std::size_t>(r)] =
          search_.thresholds[static_cast<std::size_t>(block.first + r)];
      best_[static_cast<std::size_t>(r)].clear(search_.limit);
    }
  }

  const double* limits(const RowBlock&) const { return limits_.data(); }

  void hits(const RowBlock&, Index r, Index col, const double* logits, std::uint32_t bits) {
    auto& best = best_[static_cast<std::size_t>(r)];
    bits = cursors_[static_cast<std::size_t>(r)].off_support(bits, col);
    for (; bits; bits &= bits - 1) {
      const int b = std::countr_zero(bits);
      best.push({logits[b], static_cast<Column>(col + b)});
    }
    // Columns ascend and of equal violations the lower column is kept, so later ones must be
    // larger.
    if (best.full()) limits_[static_cast<std::size_t>(r)] = best.bar().score;
  }

  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      std::vector<Violator>& list = search_.lists[static_cast<std::size_t>(block.first + r)];
      list.clear();
      for (const auto& [value, column] : best_[static_cast<std::size_t>(r)].sorted()) {
        list.push_back({column, value});
      }
    }
  }

 private:
  const ViolatorSearch& search_;
  std::vector<SupportCursor> cursors_;
  std::vector<BestFew<Scored<double>>> best_;
  std::vector<double> limits_;
};

}  // namespace

void find_violators(const ViolatorSearch& search, const PackedKeys<double>& keys, const Run& run) {
  stream_tiles(search.source, keys, run, [&] { return ViolatorFold(search); });
}

void find_violators(const ViolatorSearch& search, const Run& run) {
  stream_tiles(search.source, run, [&] { return ViolatorFold(search); });
}

}  // namespace headfit
