#include "headfit/row_qp/proofs.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace headfit {

namespace {

// In every constraint, q.k and its offset (c or b) have opposite signs. This is the sign of the
// offset: with u = sign * multiplier the gradient of the term is u (-k, e_group).
double sign_of(ConstraintKind kind) {
  return kind == ConstraintKind::RatioLower || kind == ConstraintKind::Margin ? -1.0 : 1.0;
}

int group_of(ConstraintKind kind, RowForm form) {
  if (kind == ConstraintKind::Margin) return 1;
  return kind == ConstraintKind::Outside && form == RowForm::Tolerance ? 1 : 0;
}

// Rounds the multipliers to a common grid on which all their sums are exact, and then makes the sum
// of each group zero by changing its largest term.
void make_sums_exact(std::vector<Multiplier>& terms, RowForm form) {
  double largest = 0.0;
  for (auto& t : terms) {
    if (t.kind != ConstraintKind::RatioEqual) t.value = std::max(t.value, 0.0);
    largest = std::max(largest, std::abs(t.value));
  }
  if (!(largest > 0.0)) return;
  const int bits = 51 - std::ilogb(static_cast<double>(terms.size()));
  const double grid = std::ldexp(1.0, std::ilogb(largest) - bits);
  for (auto& t : terms) t.value = std::nearbyint(t.value / grid) * grid;
  for (int g = 0; g < 2; ++g) {
    double sum = 0.0;
    Multiplier* heaviest = nullptr;
    for (auto& t : terms) {
      if (group_of(t.kind, form) != g) continue;
      sum += sign_of(t.kind) * t.value;
      if (heaviest == nullptr || std::abs(t.value) > std::abs(heaviest->value)) heaviest = &t;
    }
    if (heaviest == nullptr) continue;
    heaviest->value -= sign_of(heaviest->kind) * sum;
    if (heaviest->value >= 0.0 || heaviest->kind == ConstraintKind::RatioEqual) continue;
    // The group consists of rounding noise. It proves nothing, and the rest is valid without it.
    for (auto& t : terms) {
      if (group_of(t.kind, form) == g) t.value = 0.0;
    }
  }
  std::erase_if(terms, [](const Multiplier& t) { return t.value == 0.0; });
}

}  // namespace

Witness make_witness(const KeyView& keys, const RowProblem& problem,
                     std::vector<Multiplier> terms) {
  make_sums_exact(terms, problem.form);
  Witness out;
  out.terms = std::move(terms);
  using real = long double;
  const real unit = std::numeric_limits<real>::epsilon();
  const auto log_weight = [&](std::int32_t column) {
    const auto at = std::find(problem.support.begin(), problem.support.end(), column);
    return static_cast<real>(problem.log_weights[at - problem.support.begin()]);
  };
  real least = std::numeric_limits<real>::infinity();
  for (const double a : problem.log_weights) least = std::min(least, static_cast<real>(a));
  const real half = static_cast<real>(problem.delta) / 2;
  const real tau = static_cast<real>(problem.log_leak) + static_cast<real>(problem.delta);

  real gap = 0, gap_size = 0, weight_times_key = 0;
  for (const auto& t : out.terms) {
    real rhs = 0, size = 0;
    switch (t.kind) {
      case ConstraintKind::RatioUpper: rhs = -(log_weight(t.column) + half); break;
      case ConstraintKind::RatioLower: rhs = log_weight(t.column) - half; break;
      case ConstraintKind::RatioEqual: rhs = -log_weight(t.column); break;
      case ConstraintKind::Margin: rhs = problem.log_leak; break;
      case ConstraintKind::Outside:
        if (problem.form == RowForm::Equality) rhs = tau - least;
        break;
    }
    size = std::abs(rhs) + 2 * half + std::abs(tau) + std::abs(least);
    gap += rhs * t.value;
    gap_size += size * std::abs(static_cast<real>(t.value));
    real norm2 = 0;
    for (std::ptrdiff_t i = 0; i < keys.cols; ++i) {
      const real k = keys.row(t.column)[i];
      norm2 += k * k;
    }
    weight_times_key += std::sqrt(norm2) * std::abs(static_cast<real>(t.value));
  }
  real residual2 = 0;
  for (std::ptrdiff_t i = 0; i < keys.cols; ++i) {
    real sum = 0;
    for (const auto& t : out.terms) {
      sum -= sign_of(t.kind) * static_cast<real>(t.value) * keys.row(t.column)[i];
    }
    residual2 += sum * sum;
  }
  // The usual error bounds of sums, each rounded up generously.
  const real count = static_cast<real>(out.terms.size() + keys.cols + 8);
  const real residual_high =
      std::sqrt(residual2) * (1 + count * unit) + count * unit * weight_times_key;
  const real gap_low = gap - count * unit * gap_size;
  out.residual = static_cast<double>(std::sqrt(residual2));
  out.gap = static_cast<double>(gap);
  out.norm_bound = gap_low > 0 ? static_cast<double>(gap_low / residual_high * (1 - 4 * unit)) *
                                     (1 - std::numeric_limits<double>::epsilon())
                               : 0.0;
  return out;
}

FaceReport face_test(RowSolver& solver, const KeyView& keys, std::span<const std::int32_t> support,
                     const RowSettings& settings, const ViolatorScan& scan) {
  // The normal of a face is a feasible point of the equality form with equal weights and any
  // positive margin. If there is none, the Farkas multipliers give the convex combinations that
  // prove it.
  const std::vector<double> level(support.size(), 0.0);
  const RowProblem problem{support, level, 0.0, 1.0, RowForm::Equality};
  std::vector<Violator> buffer;
  const RowStatus status = solve_row(solver, keys, problem, settings, scan, buffer);
  FaceReport out;
  if (status == RowStatus::Optimal) {
    out.verdict = FaceVerdict::Face;
    out.margin = 1.0 / solver.norm();
    out.normal.assign(solver.query().begin(), solver.query().end());
    out.level = solver.ratio_offset();
    return out;
  }
  if (status != RowStatus::Infeasible && status != RowStatus::NormLimit) return out;
  const Witness witness = solver.witness();
  double total = 0.0;
  for (const auto& t : witness.terms) total += std::max(t.value, 0.0);
  for (const auto& t : witness.terms) {
    (t.value < 0.0 ? out.inside : out.with_others).push_back({t.column, std::abs(t.value) / total});
    if (t.kind == ConstraintKind::Outside) out.others_weight += t.value / total;
  }
  out.residual = witness.residual / total;
  out.norm_bound = witness.norm_bound;
  if (status == RowStatus::Infeasible) out.verdict = FaceVerdict::NotFace;
  return out;
}

}  // namespace headfit
