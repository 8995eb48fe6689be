// Proofs that a row cannot be had, of two kinds that must not be confused:
// - Farkas multipliers of the row's own constraints: this tolerance is out of reach;
// - "not a face": a convex combination of support keys equals one that uses other keys,
//   so some sharper tolerance is impossible at any norm (this one may be possible).
#pragma once

#include <span>
#include <vector>

#include "headfit/row_qp/cutting_planes.hpp"
#include "headfit/row_qp/row_problem.hpp"

namespace headfit {

// Cleans the terms (no negative value but on RatioEqual, sums over c and over b exactly
// zero) and measures what they prove, in long double with its rounding counted.
Witness make_witness(const KeyView& keys, const RowProblem& problem, std::vector<Multiplier> terms);

enum class FaceVerdict : std::uint8_t {
  Face,       // q, c: q.k_j = c on the support and q.k <= c - 1 elsewhere
  NotFace,    // the combination below, equal to |residual| at rounding level
  Undecided   // a face normal, if any, needs |q| >= norm_bound (limit or stalled)
};

struct ConvexTerm {
  std::int32_t column;
  double weight;
};

struct FaceReport {
  FaceVerdict verdict = FaceVerdict::Undecided;
  double margin = 0.0;  // Face: 1/|q|, the largest gap that a unit normal leaves
  std::vector<double> normal;
  double level = 0.0;
  // NotFace: sum of inside = sum of with_others up to `residual`; both sum to 1, inside
  // is on the support only and `others_weight` > 0 of with_others is off it.
  std::vector<ConvexTerm> inside, with_others;
  double residual = 0.0;
  double others_weight = 0.0;
  double norm_bound = 0.0;  // others_weight / residual: a normal of margin 1 is longer
};

FaceReport face_test(RowSolver& solver, const KeyView& keys, std::span<const std::int32_t> support,
                     const RowSettings& settings, const ViolatorScan& scan);

}  // namespace headfit
