// What is measured once of the original, in one pass over its attention A.
//
// Without a soft-cap logits are linear in P_q P_k^T, and the divergence needs A no more. With Z_i the
// sum of exponentials of a row, that of the sink included,
//   KL(A_i || M_i) = log Z_i(M) - log Z_i(A) - sum_j A_ij (logit_ij(M) - logit_ij(A)),
// the Bregman divergence of log Z (Wainwright and Jordan 2008, section 5.2). Bias and sink have no
// part in the last sum, which over all rows is <G, P_q P_k^T - scale I> with
// G = sum_i q_i (sum_j A_ij k_j)^T.
#pragma once

#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

// Second moments per row of attention, as the descent and a closed form need them.
struct CompressMoments {
  std::vector<Matrix<double>> queries;  // of each query head: the mean of q q^T
  // The mean covariance of the keys that a row attends to, weighted by its attention.
  Matrix<double> keys;
};

// Second moments of the keys that exist, whatever attends to them, over all passages.
struct KeyMoments {
  Matrix<double> plain;
  Matrix<double> centred;  // of the keys minus the mean of their passage
  Index keys = 0;
};

namespace compress {

// Sums, or means per row, over rows that attend to anything.
struct Measured {
  Index rows = 0;
  CompressMoments moments;
  // Of query heads without a soft-cap: G, and log Z(A) - <G, scale I>. Zero for others.
  std::vector<Matrix<double>> attended;
  double rest = 0;
  double size = 0;  // of the same heads: the absolute value of the largest logit of a row

  static Measured zero(Index heads, Index dim);
  void add(const Measured& other);
  void to_means();
};

// A part of the rows of one query head in one passage: the unit of work.
struct Unit {
  Index query_head;
  Index first, count;  // rows
};

// The keys of a passage. Softmax ignores what they have in common, unless there are sinks; without
// their mean less is lost to rounding. Padding becomes zero.
template <class T>
Matrix<T> centred_keys(const LogitSource<T>& passage);

// Adds the sums of the keys of a passage.
template <class T>
void add_keys(const LogitSource<T>& passage, KeyMoments& sums);

// Adds to the sums what the rows of a unit give. The first `numbers` are 0, 1, 2 ..., as many as the
// source has rows.
template <class T>
void measure(const LogitSource<T>& source, Index head, const Unit& unit,
             std::span<const Index> numbers, Measured& sums);

}  // namespace compress
}  // namespace headfit
