// The dense matrix, as logits or as weights: whole rows are kept in cache until
// they are finished, and written once.
#include "headfit/scores/attention.hpp"
#include "headfit/scores/softmax_row.hpp"
#include "headfit/scores/stream.hpp"
#include "headfit/scores/whole_rows.hpp"

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

template <class T>
class SoftmaxFold : public WholeRows<T> {
 public:
  SoftmaxFold(const OutHeads<T>& out, Index cols) : out_(out), cols_(cols) {}

  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      T* to = out_.row(block.head, block.first + r);
      std::fill(to, to + block.col_begin, T(0));
      std::fill(to + block.col_end, to + cols_, T(0));
      write_weights(block, this->row(r), to + block.col_begin);
    }
  }

 private:
  void write_weights(const RowBlock& block, T* x, T* to) {
    const Index cols = block.col_end - block.col_begin;
    const Index padded = this->padded(block);
    const T max = row_max(x, padded);
    if (max == -std::numeric_limits<T>::infinity()) {
      std::fill(to, to + cols, T(0));
      return;
    }
    const double sum =
        exp_sum<T, Exponentials::keep>(x, padded, simd::RowShift<T>::at(max));
    const Inverse<T> inverse(sum);
    constexpr Index lanes = simd::lanes<T>;
    const Index whole = cols / lanes * lanes;
    for (Index c = 0; c < whole; c += lanes) {
      simd::store(to + c, inverse.times(simd::load(x + c)));
    }
    if (whole < cols) {
      simd::store(x + whole, inverse.times(simd::load(x + whole)));
      std::copy(x + whole, x + cols, to + whole);
    }
  }

  OutHeads<T> out_;
  Index cols_;
};

}  // namespace

template <class T>
void attention_logits(const LogitSource<T>& source, const OutHeads<T>& out, const Run& run) {
  const Index cols = source.k.rows;
  stream_tiles(source, run, [&] { return LogitFold<T>(out, cols); }, whole_row_block<T>(cols));
}

template <class T>
void attention_matrix(const LogitSource<T>& source, const OutHeads<T>& out, const Run& run) {
  const Index cols = source.k.rows;
  stream_tiles(source, run, [&] { return SoftmaxFold<T>(out, cols); }, whole_row_block<T>(cols));
}

template void attention_logits(const LogitSource<float>&, const OutHeads<float>&, const Run&);
template void attention_logits(const LogitSource<double>&, const OutHeads<double>&, const Run&);
template void attention_matrix(const LogitSource<float>&, const OutHeads<float>&, const Run&);
template void attention_matrix(const LogitSource<double>&, const OutHeads<double>&, const Run&);

}  // namespace headfit
