// Statistics of rows: entropy, largest weight, and how many keys hold a share of the mass.
#include "headfit/attention/attention.hpp"
#include "headfit/attention/row_statistics.hpp"
#include "headfit/logits/stream.hpp"

namespace headfit {
namespace {

template <class T>
class StatsFold : public WholeRows<T> {
 public:
  StatsFold(const LogitSource<T>& source, const StatsOut& out)
      : statistics_(source, out), rows_(source.row_count()) {}

  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    finish_row(block, r, entries.data, entries.padded());
  }

  void end(const RowBlock& block) {
    if (block.by_entries) return;
    for (Index r = 0; r < block.count; ++r) {
      finish_row(block, r, this->row(r), this->padded(block));
    }
  }

 private:
  void finish_row(const RowBlock& block, Index r, T* x, Index padded) {
    const Index place = block.head * rows_ + block.first + r;
    statistics_.take(block.head, place, x, padded, row_max(x, padded));
  }

  RowStatistics<T> statistics_;
  Index rows_;
};

}  // namespace

void check_shares(std::span<const double> shares) {
  for (const double share : shares) {
    if (share > 0 && share <= 1) continue;
    throw InputError("shares must lie in (0, 1]; got ", share);
  }
}

template <class T>
void attention_stats(const LogitSource<T>& source, const StatsOut& out, const Run& run) {
  check_shares(out.shares);
  stream_tiles(source, run, [&] { return StatsFold<T>(source, out); });
}

template void attention_stats(const LogitSource<float>&, const StatsOut&, const Run&);
template void attention_stats(const LogitSource<double>&, const StatsOut&, const Run&);

}  // namespace headfit
