// The steps of queries and keys: the gradient and curvature of a row, and the step that solves the
// one for the other.
//
// The loss of row i is half the sum of (S - log A - c)^2 over its support, plus half the sum of
// max(0, S - b)^2 off the support. Here c is the mean of S - log A over the support, and b lies
// below c by what the tolerances require. In the gradient of a query, keys enter relative to the
// mean key of the support, because c moves with the query.
//
// Queries come first: the gradient of a query stores the residual of each of its listed columns. The
// gradient of a key then sums the residuals of the rows that list it.
#pragma once

#include <cstdint>
#include <vector>

#include "headfit/learned/candidate_lists.hpp"
#include "headfit/learned/settings.hpp"

namespace headfit::learned {

// The gradient and curvature of one row: the sums of g x and of w x x^T over a few rows x.
class RowSums {
 public:
  explicit RowSums(Index dim)
      : dim_(dim),
        width_(PaddedRows::padded(dim)),
        rows_(static_cast<std::size_t>(at_once * width_)),
        weighted_(rows_.size()),
        gradient_(static_cast<std::size_t>(width_)),
        curvature_(static_cast<std::size_t>((dim + 3) / 4 * 4 * width_)) {}

  void clear() {
    std::fill(gradient_.begin(), gradient_.end(), 0.0f);
    std::fill(curvature_.begin(), curvature_.end(), 0.0f);
    pending_ = 0;
  }

  // Adds the row x - origin, with g = force and w = pull.
  void add(const float* x, const float* origin, float force, float pull) {
    add(force, pull,
        [&](Index f) { return simd::psub(simd::load(x + f), simd::load(origin + f)); });
  }
  void add(const float* x, float force, float pull) {
    add(force, pull, [&](Index f) { return simd::load(x + f); });
  }

  // Must be called before the sums are read.
  void finish() { flush(); }
  float gradient(Index a) const { return gradient_[static_cast<std::size_t>(a)]; }
  const float* curvature_row(Index a) const { return curvature_.data() + a * width_; }

 private:
  static constexpr Index at_once = 64;

  template <class Load>
  void add(float force, float pull, const Load& load) {
    float* x = rows_.data() + pending_ * width_;
    float* wx = weighted_.data() + pending_ * width_;
    const Pack g = simd::fill(force);
    const Pack w = simd::fill(pull);
    for (Index f = 0; f < width_; f += lanes) {
      const Pack v = load(f);
      simd::store(x + f, v);
      simd::store(wx + f, simd::pmul(w, v));
      simd::store(gradient_.data() + f, simd::pmadd(g, v, simd::load(gradient_.data() + f)));
    }
    if (++pending_ == at_once) flush();
  }

  // Adds to the lower triangle of the curvature, in strips of four rows that stay in registers.
  void flush() {
    for (Index a = 0; a < dim_; a += 4) {
      for (Index c = 0; c < std::min(a + 4, dim_); c += lanes) {
        float* h = curvature_.data() + a * width_ + c;
        Pack sum[4];
        for (Index r = 0; r < 4; ++r) sum[r] = simd::load(h + r * width_);
        const float* x = rows_.data() + c;
        const float* wx = weighted_.data() + a;
        for (Index m = 0; m < pending_; ++m, x += width_, wx += width_) {
          const Pack v = simd::load(x);
          for (Index r = 0; r < 4; ++r) sum[r] = simd::pmadd(simd::fill(wx[r]), v, sum[r]);
        }
        for (Index r = 0; r < 4; ++r) simd::store(h + r * width_, sum[r]);
      }
    }
    pending_ = 0;
  }

  Index dim_, width_;
  Index pending_ = 0;
  std::vector<float> rows_, weighted_;  // rows that are not yet part of the curvature
  std::vector<float> gradient_, curvature_;
};

// The scratch memory of a worker, for one row at a time.
struct RowScratch {
  RowScratch(Index dim, Index largest_support)
      : sums(dim),
        mean(static_cast<std::size_t>(PaddedRows::padded(dim))),
        logits(static_cast<std::size_t>(largest_support)) {}
  RowSums sums;
  std::vector<float> mean;  // the mean key of the support
  std::vector<float> logits;  // the logits of the support
};

class Gradient {
 public:
  Gradient(const Requirements& required, const CandidateLists& lists);

  struct QueryState {
    float loss;
    bool meets;  // whether the row meets the tolerances, as far as its listed columns tell
  };
  // Computes the gradient and curvature of a query into the scratch. `weight` scales the
  // contribution of the row to the gradients of the keys.
  QueryState query(Index i, const PaddedRows& q, const PaddedRows& k, float weight, float rounding,
                   RowScratch& scratch);
  // The same for a key. Needs all queries to be done, and the lists transposed.
  void key(Index j, const PaddedRows& q, RowScratch& scratch) const;

 private:
  using Slot = CandidateLists::Slot;

  float pull_back(float logit, float pull_on_key, float share, const float* key, Slot slot,
                  RowSums& sums);

  const Requirements& required_;
  const CandidateLists& lists_;
  std::vector<float> force_, pull_;  // the residual and the curvature weight in each slot
};

// The gradients and curvatures of a block of rows, one row in each lane of a vector, and their steps.
struct LaneScratch {
  explicit LaneScratch(Index dim)
      : curvature(static_cast<std::size_t>(dim * (dim + 1) / 2 * lanes)),
        gradient(static_cast<std::size_t>(dim * lanes)),
        step(gradient.size()) {}
  void take(Index dim, Index lane, const RowSums& sums);

  std::vector<float> curvature;  // lower triangle, row by row
  std::vector<float> gradient;
  std::vector<float> step;
};

// The averaged gradients (momentum) and curvatures of all rows of one matrix. The step of a row solves
// its damped, averaged curvature matrix for its momentum, and is then scaled to the length that the
// annealing schedule sets. The length does not depend on the gradient: rows with small gradients must
// keep moving too, or the fit freezes in a poor arrangement.
class BlockSteps {
 public:
  BlockSteps(Index n, Index dim, const Settings& settings);

  Index blocks() const { return blocks_; }
  void forget();
  // Computes the steps of a block into scratch.step. `age` counts the steps since forget(), from 1.
  void solve(Index block, float length, Index age, LaneScratch& scratch);

 private:
  void average_curvature(Index block, float correction, float* h);

  Index blocks_, dim_, triangle_;
  float damping_;
  std::vector<float> momentum_;
  // The averaged curvatures, the largest part of the memory of a fit: one of the two is empty. The
  // short ones are bfloat16.
  std::vector<float> curvature_;
  std::vector<std::uint16_t> short_curvature_;
};

}  // namespace headfit::learned
