// The exponentials of rows of logits, and the sum over these rows of the logarithms of their sums.
#pragma once

#include "headfit/attention/softmax_row.hpp"
#include "headfit/soft/target_rows.hpp"

namespace headfit::compress {

template <class T>
class Partition {
 public:
  // A sink is one more logit of every row; -inf for none.
  explicit Partition(double sink) : sink_(sink) {}

  // Replaces a row of logits, padded with -inf to whole vectors, by exponentials without a common
  // factor. Returns what turns them into weights: 1 divided by their sum, or 0 for a row without an
  // allowed column, whose entries become 0.
  T to_exponentials(T* x, Index cols) {
    constexpr T none = -std::numeric_limits<T>::infinity();
    const T max = row_max(x, cols);
    if (max == none) {
      std::fill(x, x + cols, T(0));
      return 0;
    }
    const T top = std::max(max, static_cast<T>(sink_));
    const auto shift = simd::RowShift<T>::at(top);
    double sum = exponentials(x, cols, top, shift);
    if (static_cast<T>(sink_) != none) sum += sink_term(sink_, shift);
    add_log(sum, shift);
    sizes_ += std::abs(static_cast<double>(top));
    return static_cast<T>(1 / sum);
  }

  // The sum of the logarithms; rows without an allowed column are left out.
  double log_sums() const { return logs_ + std::log(product_) + exponents_ * std::numbers::ln2; }
  // The sum of the absolute values of the largest logits.
  double sizes() const { return sizes_; }

 private:
  // Sums whose logarithms are taken at once: even for rows of 2^40 columns their product is finite.
  static constexpr int at_once = 16;

  // Vectors of a tile's width are summed in T, and their sums in double.
  static double exponentials(T* x, Index cols, T top, const simd::RowShift<T>& shift) {
    const auto limit = simd::fill<T>(top - soft::negligible<T>);
    double sum = 0;
    for (Index begin = 0; begin < cols; begin += Blocking<T>::tile_cols) {
      auto part = simd::fill<T>(T(0));
      const Index end = std::min(begin + Blocking<T>::tile_cols, cols);
      for (Index c = begin; c < end; c += simd::lanes<T>) {
        const auto e = soft::exp_above<T>(simd::load(x + c), limit, shift);
        simd::store(x + c, e);
        part = simd::padd(part, e);
      }
      sum += static_cast<double>(simd::predux(part));
    }
    return sum;
  }

  void add_log(double sum, const simd::RowShift<T>& shift) {
    logs_ += static_cast<double>(shift.subtract);
    exponents_ += static_cast<double>(shift.exponent);
    product_ *= sum;
    if (++factors_ < at_once) return;
    logs_ += std::log(product_);
    product_ = 1;
    factors_ = 0;
  }

  double sink_;
  double logs_ = 0, exponents_ = 0, product_ = 1, sizes_ = 0;
  int factors_ = 0;
};

}  // namespace headfit::compress
