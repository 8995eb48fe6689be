// The dense matrix, of logits or of weights. Whole rows stay in cache until they are finished, and
// are written to memory once.
#include <array>

#include "headfit/attention/attention.hpp"
#include "headfit/attention/softmax_row.hpp"
#include "headfit/logits/stream.hpp"
#include "headfit/simd/write_row.hpp"

namespace headfit {
namespace {

template <class T>
class LogitFold : public WholeRows<T> {
 public:
  LogitFold(const OutHeads<T>& out, Index cols) : out_(out), cols_(cols) {}

  void end(const RowBlock& block) {
    constexpr T hidden = -std::numeric_limits<T>::infinity();
    for (Index r = 0; r < block.count; ++r) {
      T* to = out_.row(block.head, block.first + r);
      std::fill(to, to + block.col_begin, hidden);
      std::copy_n(this->row(r), block.col_end - block.col_begin, to + block.col_begin);
      std::fill(to + block.col_end, to + cols_, hidden);
    }
  }

 private:
  OutHeads<T> out_;
  Index cols_;
};

template <class T, simd::Store how>
class SoftmaxFold : public WholeRows<T> {
 public:
  SoftmaxFold(const LogitSource<T>& source, const OutHeads<T>& out)
      : source_(source), out_(out), cols_(source.k.rows) {}

  void begin(const RowBlock&) { max_.fill(-std::numeric_limits<T>::infinity()); }

  void tile(const RowBlock&, const Tile<T>& tile) {
    for (Index r = 0; r < tile.count; ++r) {
      T& max = max_[static_cast<std::size_t>(r)];
      max = std::max(max, row_max(tile.row(r), tile.padded_cols()));
    }
  }

  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      T* to = out_.row(block.head, block.first + r);
      write_zeros(to, block.col_begin);
      write_zeros(to + block.col_end, cols_ - block.col_end);
      write_weights(block, this->row(r), max_[static_cast<std::size_t>(r)], to + block.col_begin);
    }
    if (how == simd::Store::streamed) simd::finish_streams();
  }

 private:
  void write_zeros(T* to, Index count) {
    simd::write_row<how>(to, count, [](Index) { return simd::fill<T>(T(0)); });
  }

  void write_weights(const RowBlock& block, T* x, T max, T* to) {
    const Index cols = block.col_end - block.col_begin;
    if (max == -std::numeric_limits<T>::infinity()) return write_zeros(to, cols);
    const double sink = source_.sink(block.head);
    const auto shift = simd::RowShift<T>::at(std::max(max, static_cast<T>(sink)));
    double sum = exp_sum<T, Exponentials::keep>(x, this->padded(block), shift);
    if (source_.sinks) sum += sink_term(sink, shift);
    const Inverse<T> inverse(sum);
    simd::write_row<how>(to, cols, [&](Index c) { return inverse.times(simd::load(x + c)); });
  }

  const LogitSource<T>& source_;
  OutHeads<T> out_;
  Index cols_;
  std::array<T, Blocking<T>::tile_rows> max_;
};

template <class T, simd::Store how>
void write_matrix(const LogitSource<T>& source, const OutHeads<T>& out, const Run& run) {
  stream_tiles(source, run, [&] { return SoftmaxFold<T, how>(source, out); });
}

}  // namespace

template <class T>
void attention_logits(const LogitSource<T>& source, const OutHeads<T>& out, const Run& run) {
  const Index cols = source.k.rows;
  stream_tiles(source, run, [&] { return LogitFold<T>(out, cols); });
}

template <class T>
void attention_matrix(const LogitSource<T>& source, const OutHeads<T>& out, const Run& run) {
  const Index entries = source.q.count * source.row_count() * source.k.rows;
  if (!out.is_fresh && entries * Index(sizeof(T)) > simd::streamed_bytes) {
    write_matrix<T, simd::Store::streamed>(source, out, run);
  } else {
    write_matrix<T, simd::Store::cached>(source, out, run);
  }
}

template void attention_logits(const LogitSource<float>&, const OutHeads<float>&, const Run&);
template void attention_logits(const LogitSource<double>&, const OutHeads<double>&, const Run&);
template void attention_matrix(const LogitSource<float>&, const OutHeads<float>&, const Run&);
template void attention_matrix(const LogitSource<double>&, const OutHeads<double>&, const Run&);

}  // namespace headfit
