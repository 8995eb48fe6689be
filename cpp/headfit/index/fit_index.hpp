// Maps of queries and keys to few numbers by which the keys are found that a head attends to.
#pragma once

#include <functional>

#include "headfit/base/threads.hpp"
#include "headfit/index/scores.hpp"

namespace headfit {

// Query heads and the key heads that they read, in some passages.
struct IndexPassages {
  std::vector<LogitSource<float>> passages;
  Rotary<float> positions;  // a table from position 0 on; or none
  // The maps must hold for passages whose positions are moved by up to so many tokens. The table has
  // the angles of all of these.
  Index reach = 0;
  // So many of the last passages are not fitted: they choose among the steps of the descent. Where
  // that is 0 all passages do both.
  Index choosing = 0;
  std::string name = "passages";  // in errors
};

struct IndexDescent {
  Index steps = 200;
  Index rows = 64;  // of one passage in every step
  Index validated_rows = 48;  // of each passage that chooses
  std::uint64_t seed = 0;
};

struct IndexResult {
  Matrix<float> maps;  // of the steps looked at, those with the least loss on passages that choose
  double start = 0, loss = 0;  // on these passages: of the maps at the start, and of those found
  double seconds = 0;
};

// What is descended: with F the free keys of a row, p the mean attention of the query heads and s the
// scores, the cross-entropy - sum_F p log softmax_F(s), summed over rows and divided by the sum of p.
// Writes the gradient by the maps where that is not null.
class IndexLoss {
 public:
  // The maps are those of the passage as it is.
  double evaluate(const LogitSource<float>& passage, const Matrix<float>& maps,
                  const IndexOptions& options, std::span<const Index> rows,
                  Matrix<float>* gradient);
  // The attention to free keys in the last evaluation, summed over rows. Without any the loss is 0.
  double mass() const { return mass_; }
  // Whether a row of any evaluation saw a free key.
  bool saw_free_keys() const { return saw_free_keys_; }

 private:
  struct Sums {
    double mass = 0, loss = 0;
  };
  // Replaces the products of a row by the gradient of its part of the loss, times the sum of p.
  Sums differentiate(Index r, const float* attention, const IndexOptions& options);
  // Replaces the products x of head h on F by their exponentials, relative to the largest.
  void to_exponentials(Index h, float* x, const FreeKeys& free, IndexForm form);
  // Returns the loss of a row, times the sum `mass` of p; writes its slopes by the sums over heads.
  double find_slopes(Index r, const float* attention, const FreeKeys& free, double mass);
  // Replaces exponentials by the gradient by the products.
  void to_gradient(Index h, float* x, const FreeKeys& free, IndexForm form);
  void add_gradient(Index count, Matrix<float>& gradient);

  double mass_ = 0;
  bool saw_free_keys_ = false;
  IndexProducts products_;
  Matrix<float> attention_, work_, by_queries_, by_keys_;
  // Of each head in a row: the logarithm of its sum of exponentials, and that of a_h where its product
  // on F is largest; in the form dot all keys have one scale, and the latter is 0.
  Eigen::ArrayXf log_sums_, log_shares_;
  Eigen::ArrayXf sums_, slopes_;  // of each key: over heads, and of the loss by these
};

// Descends by Adam from given maps, with the rounding of what is stored inside.
IndexResult fit_index(const IndexPassages& passages, const Matrix<float>& start,
                      const IndexOptions& options, const IndexDescent& descent);

// The same for several groups, side by side on the threads of the run. `done` is called after each one
// with its number, from any thread, one at a time.
std::vector<IndexResult> fit_indexes(std::span<const IndexPassages> groups,
                                     std::span<const Matrix<float>> starts,
                                     const IndexOptions& options, const IndexDescent& descent,
                                     const std::function<void(Index, const IndexResult&)>& done,
                                     const Run& run);

}  // namespace headfit
