// The fold of the loss: what one block of rows adds to the loss, its gradient and its curvature.
#pragma once

#include "headfit/logits/whole_rows.hpp"
#include "headfit/soft/feature_sums.hpp"
#include "headfit/soft/row_divergence.hpp"
#include "headfit/soft/target_rows.hpp"

namespace headfit::soft {

// The scratch memory of a thread.
template <class T>
struct LossScratch {
  explicit LossScratch(const TargetRows<T>& target) : reader(target) {}
  typename TargetRows<T>::Reader reader;
  Buffer<T> logits, weights;       // whole rows; settle() turns them into M and M - A
  Buffer<T> row_sums, row_means;   // one row of features for each row of the block
  Buffer<T> queries, query_pairs;
};

// What folds read and write. Features of the keys are stored feature by feature, `width` keys each.
template <class T>
struct LossPlan {
  const TargetRows<T>& target;
  const Matrix<T>& head;
  Index dim, width;
  const T* keys;
  const T* key_pairs;
  T* query_gradient;   // rows of dim entries
  T* query_curvature;  // rows of triangle(dim) entries, or null
  double* row_loss;
};

template <class T>
class LossFold {
 public:
  LossFold(const LossPlan<T>& plan, std::span<const Index> rows, T* key_gradient, T* key_curvature,
           LossScratch<T>& scratch)
      : plan_(plan),
        rows_(rows),
        key_gradient_(key_gradient),
        key_curvature_(key_curvature),
        scratch_(scratch),
        features_(feature_count(plan.dim)),
        pairs_(feature_count(triangle(plan.dim))) {}

  static Index block_rows(const LogitSource<T>& source) {
    return whole_row_block<T>(source.k.rows);
  }
  T* destination(const RowBlock& block, Index stride) {
    stride_ = stride;
    return scratch_.logits.ensure(size(block));
  }
  void begin(const RowBlock&) {}
  void tile(const RowBlock&, const Tile<T>&) {}

  void end(const RowBlock& block) {
    // Nothing is allowed, and all results are zero already.
    if (block.col_begin >= block.col_end) return;
    scratch_.reader.read(block, rows_, scratch_.weights.ensure(size(block)), stride_);
    for (Index r = 0; r < block.count; ++r) settle(block, r);
    add_gradient(block);
    if (key_curvature_) add_curvature(block);
  }

 private:
  Index size(const RowBlock& block) const {
    return round_up(block.count, Blocking<T>::row_group) * stride_;
  }
  static Index padded(const RowBlock& block) {
    return round_up(block.col_end - block.col_begin, simd::lanes<T>);
  }
  Index row_at(const RowBlock& block, Index r) const {
    return rows_[static_cast<std::size_t>(block.first + r)];
  }

  // Turns a row of logits into M, and the row of A into M - A; records the loss of the row.
  void settle(const RowBlock& block, Index r) {
    const Index i = row_at(block, r);
    plan_.row_loss[i] =
        to_difference(scratch_.logits.data() + r * stride_, scratch_.weights.data() + r * stride_,
                      padded(block), plan_.target.entropy(i));
  }

  void add_gradient(const RowBlock& block) {
    const T* difference = scratch_.weights.data();
    T* sums = scratch_.row_sums.ensure(block.count * pairs_);
    gather(difference, stride_, block.count, plan_.keys + block.col_begin, plan_.width, features_,
           padded(block), sums, features_);
    T* queries = scratch_.queries.ensure(block.count * features_);
    std::fill_n(queries, block.count * features_, T(0));
    for (Index r = 0; r < block.count; ++r) {
      const Index i = row_at(block, r);
      std::copy_n(sums + r * features_, plan_.dim, plan_.query_gradient + i * plan_.dim);
      std::copy_n(plan_.head.data() + i * plan_.dim, plan_.dim, queries + r * features_);
    }
    spread(difference, stride_, block.count, queries, features_, features_, padded(block),
           key_gradient_ + block.col_begin, plan_.width);
  }

  void add_curvature(const RowBlock& block) {
    T* m = scratch_.logits.data();
    T* means = scratch_.row_means.ensure(block.count * features_);
    T* seconds = scratch_.row_sums.data();
    gather(m, stride_, block.count, plan_.keys + block.col_begin, plan_.width, features_,
           padded(block), means, features_);
    gather(m, stride_, block.count, plan_.key_pairs + block.col_begin, plan_.width, pairs_,
           padded(block), seconds, pairs_);
    T* queries = scratch_.query_pairs.ensure(block.count * pairs_);
    std::fill_n(queries, block.count * pairs_, T(0));
    for (Index r = 0; r < block.count; ++r) {
      const Index i = row_at(block, r);
      T* h = plan_.query_curvature + i * triangle(plan_.dim);
      pair_products(means + r * features_, plan_.dim, h, 1);
      for (Index t = 0; t < triangle(plan_.dim); ++t) h[t] = seconds[r * pairs_ + t] - h[t];
      pair_products(plan_.head.data() + i * plan_.dim, plan_.dim, queries + r * pairs_, 1);
      T* row = m + r * stride_;
      for (Index c = 0; c < padded(block); ++c) row[c] *= 1 - row[c];
    }
    spread(m, stride_, block.count, queries, pairs_, pairs_, padded(block),
           key_curvature_ + block.col_begin, plan_.width);
  }

  const LossPlan<T>& plan_;
  std::span<const Index> rows_;
  T* key_gradient_;
  T* key_curvature_;
  LossScratch<T>& scratch_;
  Index features_, pairs_;
  Index stride_ = 0;
};

}  // namespace headfit::soft
