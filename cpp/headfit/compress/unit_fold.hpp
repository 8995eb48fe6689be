// The fold of the loss of maps: what a block of rows of the smaller head adds to the divergence, and
// to its gradient by the mapped queries and keys.
#pragma once

#include "headfit/compress/compress.hpp"
#include "headfit/logits/whole_rows.hpp"
#include "headfit/soft/feature_sums.hpp"
#include "headfit/soft/row_divergence.hpp"

namespace headfit::compress {

// The mapped queries and keys of a unit, the gradient by them, and scratch memory. Each thread has
// one of its own.
template <class T>
struct UnitWork {
  Index dim = 0, width = 0;  // width: the padded number of keys
  Buffer<T> queries, keys;  // row by row
  Buffer<T> key_features;  // feature by feature, `width` keys each
  Buffer<T> query_gradient;  // row by row, for the rows of the unit
  Buffer<T> key_gradient;  // as key_features
  Buffer<T> logits, weights, slopes, sums, features;
};

template <class T>
class UnitFold {
 public:
  UnitFold(const LogitSource<T>& source, typename soft::TargetRows<T>::Reader& reader,
           const soft::TargetRows<T>& target, UnitWork<T>& work, bool with_gradient, double& loss)
      : source_(source),
        reader_(reader),
        target_(target),
        work_(work),
        with_gradient_(with_gradient),
        loss_(loss),
        features_(soft::feature_count(work.dim)) {}

  static Index block_rows(const LogitSource<T>& source) {
    return whole_row_block<T>(source.k.rows);
  }
  T* destination(const RowBlock& block, Index stride) {
    stride_ = stride;
    return work_.logits.ensure(size(block));
  }
  void begin(const RowBlock&) {}
  void tile(const RowBlock&, const Tile<T>&) {}

  void end(const RowBlock& block) {
    // Nothing is allowed, and the gradient is zero already.
    if (block.col_begin >= block.col_end) return;
    reader_.read(block, *source_.rows, work_.weights.ensure(size(block)), stride_);
    for (Index r = 0; r < block.count; ++r) settle(block, r);
    if (with_gradient_) add_gradient(block);
  }

 private:
  Index size(const RowBlock& block) const {
    return round_up(block.count, Blocking<T>::row_group) * stride_;
  }
  static Index padded(const RowBlock& block) {
    return round_up(block.col_end - block.col_begin, simd::lanes<T>);
  }

  // Turns a row of the target into the gradient of the divergence by the products of the row.
  void settle(const RowBlock& block, Index r) {
    T* x = work_.logits.data() + r * stride_;
    T* a = work_.weights.data() + r * stride_;
    const Index cols = padded(block);
    const Index row = source_.row_at(block.first + r);
    const bool capped = with_gradient_ && source_.softcap > 0;
    if (capped) find_slopes(block, row, x);
    loss_ += soft::to_difference(x, a, cols, target_.entropy(row),
                                 {source_.sink(0), target_.log_sink(row)});
    if (!capped) return;
    const T* slopes = work_.slopes.data();
    for (Index c = 0; c < cols; ++c) a[c] *= slopes[c];
  }

  // The derivatives of soft-capped logits by the products, 1 - (capped / softcap)^2.
  void find_slopes(const RowBlock& block, Index row, const T* x) {
    const Index cols = padded(block);
    T* slopes = work_.slopes.ensure(cols);
    std::copy_n(x, cols, slopes);
    if (source_.bias.is_set()) {
      std::visit([&](const auto* bias) {
        const auto* from = bias + row * source_.bias.row + block.col_begin * source_.bias.col;
        for (Index c = 0; c < block.col_end - block.col_begin; ++c) {
          slopes[c] -= as<T>(from[c * source_.bias.col]);
        }
      }, source_.bias.data);
    }
    const T inverse = static_cast<T>(1 / source_.softcap);
    for (Index c = 0; c < cols; ++c) {
      const T share = slopes[c] * inverse;
      // Where the mask or the bias is -inf, the difference is zero, and so is what it gets here.
      slopes[c] = std::isfinite(share) ? 1 - share * share : T(0);
    }
  }

  void add_gradient(const RowBlock& block) {
    const T* difference = work_.weights.data();
    const Index dim = work_.dim;
    T* sums = work_.sums.ensure(block.count * features_);
    soft::gather(difference, stride_, block.count, work_.key_features.data() + block.col_begin,
                 work_.width, features_, padded(block), sums, features_);
    T* queries = work_.features.ensure(block.count * features_);
    std::fill_n(queries, block.count * features_, T(0));
    for (Index r = 0; r < block.count; ++r) {
      const Index place = block.first + r;
      std::copy_n(sums + r * features_, dim, work_.query_gradient.data() + place * dim);
      std::copy_n(work_.queries.data() + source_.row_at(place) * dim, dim, queries + r * features_);
    }
    soft::spread(difference, stride_, block.count, queries, features_, features_, padded(block),
                 work_.key_gradient.data() + block.col_begin, work_.width);
  }

  const LogitSource<T>& source_;
  typename soft::TargetRows<T>::Reader& reader_;
  const soft::TargetRows<T>& target_;
  UnitWork<T>& work_;
  bool with_gradient_;
  double& loss_;
  Index features_;
  Index stride_ = 0;
};

}  // namespace headfit::compress
