// The steps of a block of rows, with one row in each lane of a vector. The step of a row solves its
// damped, averaged curvature matrix for its momentum (the averaged gradient), and is then scaled to
// the length that the annealing schedule sets. The length does not depend on the gradient: rows
// with small gradients must keep moving too, or the fit freezes in a poor arrangement.
#pragma once

#include "headfit/learned/recipe.hpp"
#include "headfit/learned/row_sums.hpp"

namespace headfit::learned {

// The gradients and curvatures of a block of rows, one row in each lane, and their steps.
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

// The averaged gradients (momentum) and curvatures of all rows of one matrix.
class BlockSteps {
 public:
  BlockSteps(Index n, Index dim, const Recipe& recipe);

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
