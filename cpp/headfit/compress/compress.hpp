// One smaller head for every input: maps P_q and P_k such that the attention of Q P_q and K P_k is
// close, in KL divergence, to that of Q and K in every passage that a head meets.
//
// The maps are one matrix here: P_q of each query head (dim rows each), and below them P_k, which all
// query heads share. The scale of the logits is part of P_q; soft-cap, mask and bias stay as they
// are.
#pragma once

#include <memory>
#include <vector>

#include "headfit/descent/limits.hpp"
#include "headfit/soft/target_rows.hpp"

namespace headfit {

// What is measured once of the original, in one pass over its attention A (measure.cpp).
//
// Without a soft-cap logits are linear in P_q P_k^T, and the divergence needs A no more. With Z_i the
// sum of exponentials of a row, that of the sink included,
//   KL(A_i || M_i) = log Z_i(M) - log Z_i(A) - sum_j A_ij (logit_ij(M) - logit_ij(A)),
// the Bregman divergence of log Z (Wainwright and Jordan 2008, section 5.2). Bias and sink have no
// part in the last sum, which over all rows is <G, P_q P_k^T - scale I> with
// G = sum_i q_i (sum_j A_ij k_j)^T.

// Second moments per row of attention, as the descent and a closed form need them.
struct CompressMoments {
  std::vector<Matrix<double>> queries;  // of each query head: its sum of q q^T / all rows
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
  double constant = 0;
  double top_logit = 0;  // of the same heads: the absolute value of the largest logit of a row

  static Measured zero(Index heads, Index dim);
  void add(const Measured& other);
  void to_means();
};

// A part of the rows of one query head in one passage: the unit of work.
struct Unit {
  Index query_head;
  Index first, count;  // rows
};
// Its rows, where the numbers are 0, 1, 2 ..., as many as the passage has rows.
inline std::span<const Index> rows_of(const Unit& unit, std::span<const Index> numbers) {
  return numbers.subspan(static_cast<std::size_t>(unit.first),
                         static_cast<std::size_t>(unit.count));
}

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

// One query head in one passage.
template <class T>
struct QueryHead {
  LogitSource<T> source;  // one query head and its key head
  Index head;
};

// The rows of the original, by query head of each passage; null where they are not needed.
template <class T>
using Targets = std::vector<std::unique_ptr<const soft::TargetRows<T>>>;

}  // namespace compress

// The mean over all rows of KL(A_i || M_i), where A is the attention of a head in some passages, and
// M that of its queries and keys under the maps. Rows that attend to nothing are left out. What a sink
// takes is one more class, whose logit maps do not change.
//
// Passages must store queries and keys as T, without rotary positions; they stay the caller's. A copy
// of the keys is kept, and what was measured of A (`Measured`); soft-capped heads keep neither, and
// compute A again in every evaluation.
template <class T>
class CompressLoss {
 public:
  // Each passage has the query heads of one key head, and that key head.
  CompressLoss(std::span<const LogitSource<T>> passages, const Run& run);

  Index rows() const { return measured_.rows; }

  // `gradient` may be null. With `targets` all rows of A are computed again: it takes twice as long,
  // and what rounding changes falls with the loss.
  double evaluate(const Matrix<double>& maps, Matrix<double>* gradient, const Run& run,
                  const compress::Targets<T>* targets = nullptr) const;
  compress::Targets<T> all_targets(const Run& run) const { return targets_of(false, run); }
  // By about how much rounding may change a loss that is evaluated without targets.
  double rounding() const {
    return static_cast<double>(std::numeric_limits<T>::epsilon()) * measured_.top_logit;
  }
  const CompressMoments& moments() const { return measured_.moments; }
  const KeyMoments& key_moments() const { return key_moments_; }

 private:
  void add_passage(const LogitSource<T>& passage);
  compress::Targets<T> targets_of(bool only_capped, const Run& run) const;
  // How the units of a query head need its keys.
  KeyLayouts layouts_of(Index query_head) const;
  void measure(const Run& run);
  Index groups() const;
  void check(const Matrix<double>& maps) const;
  // The part of the loss that is linear in P_q P_k^T, added to it and to its gradient.
  void add_linear(const Matrix<double>& maps, double& loss, Matrix<double>* gradient) const;

  Index heads_ = 0, dim_ = 0;
  compress::Measured measured_;
  KeyMoments key_moments_;
  std::vector<Matrix<T>> keys_;  // of each passage, centred
  std::vector<compress::QueryHead<T>> query_heads_;
  compress::Targets<T> capped_;  // of soft-capped heads
  std::vector<compress::Unit> units_;
  std::vector<Index> numbers_;  // 0, 1, 2 ...: the rows of a unit are a part of them
};

struct CompressOptions {
  Matrix<double> start;
  DescentLimits limits = {};
};

struct CompressResult {
  DescentStatus status = DescentStatus::Converged;
  Matrix<double> maps;  // with the least loss
  // Those of the steps looked at whose loss is least on the passages of `judge`.
  Matrix<double> judged_maps;
  double judged = 0;
  std::vector<double> history;  // the mean divergence per row, at the start and after each step
  Index evaluations = 0;
  double seconds = 0;
};

// Descends from a start. Every few steps, and at the end, the loss on other passages is computed,
// unless `judge` is null.
template <class T>
CompressResult fit_maps(const CompressLoss<T>& loss, const CompressLoss<T>* judge,
                        const CompressOptions& options, const Run& run);

}  // namespace headfit
