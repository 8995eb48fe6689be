// The step of a block of rows, one in each lane of a vector: the row's averaged curvature,
// damped, is solved against its momentum, and the solution is scaled to a set length. The
// length is what anneals. It never adapts to the gradient: quiet rows must keep moving, or
// the fit freezes in a poor arrangement.
#pragma once

#include "headfit/learned/recipe.hpp"
#include "headfit/learned/row_sums.hpp"

namespace headfit::learned {

// The sums of a block of rows side by side, and the step made of them.
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

// Momentum and curvature of all rows of one matrix.
class BlockSteps {
 public:
  BlockSteps(Index n, Index dim, const Recipe& recipe);

  Index blocks() const { return blocks_; }
  void forget();
  // The `age`-th step since forget, from 1. Leaves it in scratch.step.
  void solve(Index block, float length, Index age, LaneScratch& scratch);

 private:
  Index blocks_, dim_, triangle_;
  float damping_;
  std::vector<float> momentum_, curvature_;
};

}  // namespace headfit::learned
