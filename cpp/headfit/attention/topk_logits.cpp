// The k largest logits of every row, without sums of exponentials. Most logits never leave the
// registers they were computed in.
#include <bit>

#include "headfit/attention/attention.hpp"
#include "headfit/attention/short_lists.hpp"
#include "headfit/base/best_few.hpp"

namespace headfit {
namespace {

template <class T>
class LargestFold {
 public:
  LargestFold(Index k, const OutHeads<Offset>& columns, const OutHeads<T>& logits)
      : k_(k), columns_(columns), logits_(logits) {}

  Index block_rows(const LogitSource<T>& source) const { return list_rows(source, k_); }

  void begin(const RowBlock& block) {
    const Index padded = round_up(block.count, Blocking<T>::row_group);
    std::fill_n(limits_.ensure(padded), padded, infinity);
    std::fill_n(limits_.data(), block.count, -infinity);
    best_.resize(static_cast<std::size_t>(block.count));
    for (auto& best : best_) best.clear(k_);
  }

  const T* limits(const RowBlock&) const { return limits_.data(); }

  // Of equal logits the one with the lower column is kept, since columns ascend.
  void hits(const RowBlock&, Index r, Index col, const T* logits, std::uint32_t bits) {
    BestFew<Ranked>& best = best_[static_cast<std::size_t>(r)];
    for (; bits; bits &= bits - 1) {
      const int b = std::countr_zero(bits);
      best.push({logits[b], col + b});
    }
    if (best.full()) limits_.data()[r] = best.bar().score;
  }

  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      const auto& best = best_[static_cast<std::size_t>(r)].sorted();
      Offset* cols = columns_.row(block.head, block.first + r);
      T* logits = logits_.row(block.head, block.first + r);
      std::fill_n(cols, k_, Offset(-1));
      std::fill_n(logits, k_, -infinity);
      for (std::size_t i = 0; i < best.size(); ++i) {
        cols[i] = best[i].col;
        logits[i] = best[i].score;
      }
    }
  }

 private:
  using Ranked = Scored<T, Index>;
  static constexpr T infinity = std::numeric_limits<T>::infinity();

  Index k_;
  OutHeads<Offset> columns_;
  OutHeads<T> logits_;
  std::vector<BestFew<Ranked>> best_;
  Buffer<T> limits_;
};

}  // namespace

template <class T>
void attention_topk_logits(const LogitSource<T>& source, Index k, const OutHeads<Offset>& columns,
                           const OutHeads<T>& logits, const Run& run) {
  check_list_length(k, source.k.rows);
  stream_tiles(source, run, [&] { return LargestFold<T>(k, columns, logits); });
}

template void attention_topk_logits(const LogitSource<float>&, Index, const OutHeads<Offset>&,
                                    const OutHeads<float>&, const Run&);
template void attention_topk_logits(const LogitSource<double>&, Index, const OutHeads<Offset>&,
                                    const OutHeads<double>&, const Run&);

}  // namespace headfit
