// Proofs that no query meets the requirements of a row. There are two kinds.
// - Farkas multipliers of the row's own constraints: these tolerances cannot be met.
// - "Not a face": a convex combination of keys of the support equals one that uses other keys too.
//   Then some sharper tolerances cannot be met at any norm, though those of the row may be.
#pragma once

#include <span>
#include <vector>

#include "headfit/row_qp/cutting_planes.hpp"
#include "headfit/row_qp/row_problem.hpp"

namespace headfit {

// Cleans the terms, such that no value is negative except with RatioEqual, and the sums over c and
// over b are exactly zero. Then computes what they prove, in long double, with its rounding errors
// included.
Witness make_witness(const KeyView& keys, const RowProblem& problem, std::vector<Multiplier> terms);

enum class FaceVerdict : std::uint8_t {
  Face,       // there are q, c with q.k_j = c on the support and q.k <= c - 1 elsewhere
  NotFace,    // the combinations below agree, with a residual at rounding level
  Undecided   // a normal, if there is one, has |q| >= norm_bound (or the solver gave up)
};

struct ConvexTerm {
  std::int32_t column;
  double weight;
};

struct FaceReport {
  FaceVerdict verdict = FaceVerdict::Undecided;
  double margin = 0.0;  // Face: 1/|q|, the largest margin that a normal of length 1 has
  std::vector<double> normal;
  double level = 0.0;
  // NotFace: the convex combinations `inside` and `with_others` are equal up to `residual`. The
  // weights of each sum to 1. `inside` uses keys of the support only; a weight of `others_weight` >
  // 0 in `with_others` is on other keys.
  std::vector<ConvexTerm> inside, with_others;
  double residual = 0.0;
  double others_weight = 0.0;
  double norm_bound = 0.0;  // others_weight / residual; a normal with margin 1 is longer
};

FaceReport face_test(RowSolver& solver, const KeyView& keys, std::span<const std::int32_t> support,
                     const RowSettings& settings, const ViolatorScan& scan);

}  // namespace headfit
