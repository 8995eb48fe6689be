// The loss of a head against a dense target, KL(A_i || M_i) summed over the rows, with its gradient
// and the diagonal blocks of its Hessian:
//   query i:  sum_j (M_ij - A_ij) k_j  and  sum_j M_ij (k_j - kbar_i)(k_j - kbar_i)^T,
//   key j:    sum_i (M_ij - A_ij) q_i  and  sum_i M_ij (1 - M_ij) q_i q_i^T.
//
// All of this is computed in one pass over the stream of logits. Rows are divided into a few
// chunks, whose number does not depend on that of the threads. Each chunk sums its contributions to
// the keys, and the sums of the chunks are added in order.
#pragma once

#include "headfit/soft/target_rows.hpp"

namespace headfit::soft {

template <class T>
class Loss {
 public:
  // A head is one matrix here: the queries, and below them the keys.
  Loss(const TargetRows<T>& target, const Mask& mask, Index dim, const Run& run);

  Index queries() const { return target_.rows(); }
  Index keys() const { return target_.cols(); }
  Index dim() const { return dim_; }

  // Row i of `curvature`, unless it is null, receives the lower triangle of the block of row i.
  double evaluate(const Matrix<T>& head, Matrix<T>& gradient, Matrix<T>* curvature);

 private:
  // The contributions of a chunk of rows to all keys, stored feature by feature.
  struct Chunk {
    std::vector<Index> rows;
    Buffer<T> gradient;
    Buffer<T> curvature;
  };

  void lay_out_keys(const Matrix<T>& head, bool with_pairs);
  void add_chunks(Buffer<T> Chunk::* part, Index count, Matrix<T>& out) const;

  const TargetRows<T>& target_;
  const Run& run_;
  LogitSource<T> source_;
  Index dim_, width_;  // width_: the padded number of keys
  std::vector<Chunk> chunks_;
  std::vector<double> row_loss_;
  Buffer<T> keys_, pairs_;
};

}  // namespace headfit::soft
