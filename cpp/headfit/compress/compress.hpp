// One smaller head for every input: maps P_q and P_k such that the attention of Q P_q and K P_k is
// close, in KL divergence, to that of Q and K in every passage that a head meets.
//
// The maps are one matrix here: P_q of each query head (dim rows each), and below them P_k, which all
// query heads share. The scale of the logits is part of P_q; soft-cap, mask and bias stay as they
// are.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/compress/measure.hpp"
#include "headfit/soft/compare.hpp"
#include "headfit/soft/fit_soft.hpp"
#include "headfit/soft/target_rows.hpp"

namespace headfit {

namespace compress {

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
// of the keys is kept, and what was measured of A (measure.hpp). Only soft-capped heads compute A
// again in every evaluation.
template <class T>
class CompressLoss {
 public:
  // Each passage has the query heads of one key head, and that key head.
  CompressLoss(std::span<const LogitSource<T>> passages, const Run& run);

  Index heads() const { return heads_; }
  Index dim() const { return dim_; }
  Index rows() const { return measured_.rows; }

  // `gradient` may be null. With `targets` all rows of A are computed again: it takes twice as long,
  // and what rounding changes falls with the loss.
  double evaluate(const Matrix<double>& maps, Matrix<double>* gradient, const Run& run,
                  const compress::Targets<T>* targets = nullptr) const;
  compress::Targets<T> all_targets(const Run& run) const { return targets_of(false, run); }
  // By about how much rounding may change a loss that is evaluated without targets.
  double rounding() const {
    return static_cast<double>(std::numeric_limits<T>::epsilon()) * measured_.size;
  }
  const CompressMoments& moments() const { return measured_.moments; }
  const KeyMoments& key_moments() const { return key_moments_; }

 private:
  void add_passage(const LogitSource<T>& passage);
  compress::Targets<T> targets_of(bool only_capped, const Run& run) const;
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

// Maps that commute with rotary positions: each pair of entries of the smaller head is one pair of the
// whole head, times a complex number, which the queries take.
struct CommutingPairs {
  // For each pair its two entries in the whole head, and then those in the smaller one.
  std::vector<std::array<Index, 4>> entries;
  // Models of the Hessian of the loss by the real and imaginary parts of the numbers of each query
  // head, one pair after the other.
  std::vector<Matrix<double>> hessians;
};

struct CompressOptions {
  Matrix<double> start;
  DescentLimits limits = {};
  // Where maps must commute with rotary positions, as those of the start do.
  std::optional<CommutingPairs> pairs = {};
};

struct CompressResult {
  SoftStatus status = SoftStatus::Converged;
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

// Compares heads with their originals, pair by pair, in double. Each has one query head or more.
std::vector<SoftDistances> compare_heads(std::span<const LogitSource<double>> originals,
                                         std::span<const LogitSource<double>> smaller,
                                         const Run& run);

// One query head of a source, with its key head.
template <class T>
LogitSource<T> query_head_of(const LogitSource<T>& source, Index head) {
  const auto advance = [](Stored& data, Index items) {
    std::visit([&](auto*& first) {
      if (first) first += items;
    }, data);
  };
  LogitSource<T> one = source;
  advance(one.q.data, head * source.q.head_stride);
  advance(one.k.data, head / source.group * source.k.head_stride);
  advance(one.bias.data, head * source.bias.head);
  if (one.mask.dense) one.mask.dense += head * one.mask.dense_head;
  if (one.mask.key_lengths) one.mask.key_lengths += head;
  if (one.mask.keys) one.mask.keys += head * one.mask.keys_head;
  if (one.sinks) one.sinks += head;
  one.q.count = one.k.count = one.group = 1;
  return one;
}

}  // namespace headfit
