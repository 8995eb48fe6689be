// The loss of a head against a dense target, KL(A_i || M_i) summed over the rows, with its gradient
// and the diagonal blocks of its Hessian:
//   query i:  sum_j (M_ij - A_ij) k_j  and  sum_j M_ij (k_j - kbar_i)(k_j - kbar_i)^T,
//   key j:    sum_i (M_ij - A_ij) q_i  and  sum_i M_ij (1 - M_ij) q_i q_i^T.
//
// All of this is computed in one pass over the stream of logits. Rows are divided into a few
// chunks, whose number does not depend on that of the threads. Each chunk sums its contributions to
// the keys, and the sums of the chunks are added in order.
#pragma once

#include "headfit/descent/key_table.hpp"
#include "headfit/soft/target_rows.hpp"

namespace headfit::soft {

template <class T>
class Loss {
 public:
  // A head is one matrix here: the queries, and below them the keys. Packs the keys of the target.
  Loss(TargetRows<T>& target, const Mask& mask, Index dim, const Run& run);

  Index queries() const { return target_.rows(); }
  Index keys() const { return target_.cols(); }

  // Row i of `curvature`, unless it is null, receives the lower triangle of the block of row i.
  double evaluate(const Matrix<T>& head, Matrix<T>& gradient, Matrix<T>* curvature);

 private:
  // A chunk of rows, and their contributions to all keys.
  struct Chunk {
    std::vector<Index> rows;
    descent::KeyTable<T> gradient, curvature;
  };

  LogitSource<T> source(const T* head) const;
  KeyLayouts find_layouts() const;
  void lay_out_keys(const Matrix<T>& head, bool with_pairs);
  void add_chunks(descent::KeyTable<T> Chunk::* part, Matrix<T>& out) const;

  const TargetRows<T>& target_;
  const Run& run_;
  Mask mask_;
  Index dim_;
  std::vector<Chunk> chunks_;
  KeyLayouts layouts_;  // of everything that is stored for each key
  std::vector<double> row_loss_;
  descent::KeyTable<T> keys_, pairs_;
};

}  // namespace headfit::soft
