// The loss of a head against a dense target, KL(A_i || M_i) summed over the rows, with its
// gradient and the diagonal blocks of its Hessian:
//   query i:  sum_j (M_ij - A_ij) k_j  and  sum_j M_ij (k_j - kbar_i)(k_j - kbar_i)^T,
//   key j:    sum_i (M_ij - A_ij) q_i  and  sum_i M_ij (1 - M_ij) q_i q_i^T.
//
// Everything comes from one stream over the logits. The rows are cut into chunks, few and
// never depending on the number of threads; each sums its part of what the keys get, and the
// parts are added in order.
#pragma once

#include "headfit/soft/feature_sums.hpp"
#include "headfit/soft/target_rows.hpp"

namespace headfit::soft {

template <class T>
class Loss {
 public:
  // A head is one matrix: its queries, and below them its keys.
  Loss(const TargetRows<T>& target, const Mask& mask, Index dim, const Run& run);

  Index queries() const { return target_.rows(); }
  Index keys() const { return target_.cols(); }
  Index dim() const { return dim_; }

  // Every row of `curvature`, where asked for, is the lower triangle of that row's block.
  double evaluate(const Matrix<T>& head, Matrix<T>& gradient, Matrix<T>* curvature);

 private:
  // What a chunk of rows gives to all keys, features along columns.
  struct Chunk {
    std::vector<Index> rows;
    Buffer<T> gradient;
    Buffer<T> curvature;
  };

  void lay_out_keys(const Matrix<T>& head, bool with_pairs);
  void add_chunks(Buffer<T> Chunk::*part, Index count, Matrix<T>& out) const;

  const TargetRows<T>& target_;
  const Run& run_;
  LogitSource<T> source_;
  Index dim_, width_;  // columns of a row of features
  std::vector<Chunk> chunks_;
  std::vector<double> row_loss_;
  Buffer<T> keys_, pairs_;
};

}  // namespace headfit::soft
