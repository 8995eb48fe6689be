// The fold that computes rows of the original again, and their divergence: for heads with a soft-cap,
// and for losses so small that the difference of two logarithms loses them to rounding.
#pragma once

#include "headfit/compress/unit_fold.hpp"
#include "headfit/soft/row_divergence.hpp"

namespace headfit::compress {

template <class T>
class TargetFold : public UnitFold<T> {
 public:
  TargetFold(const LogitSource<T>& source, typename soft::TargetRows<T>::Reader& reader,
             const soft::TargetRows<T>& target, UnitWork<T>& work, double& loss)
      : UnitFold<T>(source, work), reader_(reader), target_(target), loss_(loss) {}

  void end(const RowBlock& block) {
    // Nothing is allowed, and the gradient is zero already.
    if (block.col_begin >= block.col_end) return;
    T* weights = this->work_.weights.ensure(this->size(block));
    reader_.read(block, *this->source_.rows, weights, this->stride_);
    for (Index r = 0; r < block.count; ++r) settle(block, r);
    if (!this->work_.with_gradient) return;
    T* factors = this->work_.factors.ensure(block.count);
    std::fill_n(factors, block.count, T(1));
    this->add_gradient(block, weights, factors);
  }

 private:
  // Turns a row of the target into the gradient of the divergence by the products of the row.
  void settle(const RowBlock& block, Index r) {
    T* x = this->logits(r);
    T* a = this->work_.weights.data() + r * this->stride_;
    const Index cols = this->padded(block), row = this->source_.row_at(block.first + r);
    const bool capped = this->work_.with_gradient && this->source_.softcap > 0;
    if (capped) find_slopes(block, row, x);
    loss_ += soft::to_difference(x, a, cols, target_.entropy(row),
                                 {this->source_.sink(0), target_.log_sink(row)});
    if (!capped) return;
    const T* slopes = this->work_.slopes.data();
    for (Index c = 0; c < cols; ++c) a[c] *= slopes[c];
  }

  // The derivatives of soft-capped logits by the products, 1 - (capped / softcap)^2.
  void find_slopes(const RowBlock& block, Index row, const T* x) {
    const Index cols = this->padded(block);
    T* slopes = this->work_.slopes.ensure(cols);
    std::copy_n(x, cols, slopes);
    const Bias& bias = this->source_.bias;
    if (bias.is_set()) {
      std::visit([&](const auto* first) {
        const auto* from = first + row * bias.row + block.col_begin * bias.col;
        for (Index c = 0; c < block.col_end - block.col_begin; ++c) {
          slopes[c] -= as<T>(from[c * bias.col]);
        }
      }, bias.data);
    }
    const T inverse = static_cast<T>(1 / this->source_.softcap);
    for (Index c = 0; c < cols; ++c) {
      const T share = slopes[c] * inverse;
      // Where the mask or the bias is -inf, the difference is zero, and so is what it gets here.
      slopes[c] = std::isfinite(share) ? 1 - share * share : T(0);
    }
  }

  typename soft::TargetRows<T>::Reader& reader_;
  const soft::TargetRows<T>& target_;
  double& loss_;
};

}  // namespace headfit::compress
