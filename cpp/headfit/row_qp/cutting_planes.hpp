// One row of max-margin queries by cutting planes: the constraints off the support come
// from scans, a few at a time, and every re-solve starts from the last working set.
//
//   RowSolver solver;                                   // reuse it: buffers are kept
//   RowStatus s = solver.start(keys, problem, settings);
//   while (s == RowStatus::NeedsScan)                   // many rows can share one scan
//     s = solver.add(violators of solver.query() above solver.threshold());
//
// Each pool is a relaxation, so its optimum is a lower bound on the norm that the row
// needs, and a Farkas witness of the pool is one of the whole row.
#pragma once

#include <span>
#include <vector>

#include "headfit/row_qp/row_constraints.hpp"

namespace headfit {

class RowSolver {
 public:
  // `problem`'s spans and `keys` must outlive the row. `warm` (optional): terms of an
  // earlier multipliers(), for these or for slightly different keys and weights; their
  // columns off the support must not be masked now.
  RowStatus start(const KeyView& keys, const RowProblem& problem, const RowSettings& settings,
                  std::span<const Multiplier> warm = {});
  RowStatus add(std::span<const Violator> found);
  RowStatus status() const { return status_; }

  // Optimal: the answer. NeedsScan: where to scan, above which value, for how many.
  std::span<const double> query() const {
    return {query_.data(), static_cast<size_t>(query_.size())};
  }
  double threshold() const { return threshold_; }
  int limit() const { return settings_.cuts_per_round; }

  double norm() const { return set_.q().norm(); }
  double ratio_offset() const { return set_.level(0); }  // c
  double margin_level() const { return threshold_b_; }   // b: min_S q.k - L
  // Nonzero multipliers of the current working set (at Optimal: the KKT multipliers).
  void multipliers(std::vector<Multiplier>& out) const;
  // After Infeasible or NormLimit; Infeasible is said only when this proves it.
  const Witness& witness() const { return witness_; }

  int rounds() const { return rounds_; }
  int steps() const { return set_.steps(); }
  int pool() const { return set_.pool().points(); }

 private:
  RowStatus solve(double leave);
  RowStatus solve_pool(const DualActiveSet::Effort& effort);
  RowStatus after_this_scan() const;
  RowStatus refine();
  void set_threshold();
  double scan_slack() const;
  void make_proof();

  KeyView keys_;
  RowProblem problem_;
  RowSettings settings_;
  DualActiveSet set_;
  RowConstraints constraints_;
  RowStatus status_ = RowStatus::Stalled;
  Eigen::VectorXd query_, scanned_;
  double threshold_ = 0.0, threshold_b_ = 0.0;
  int rounds_ = 0;
  bool seeding_ = false, refined_ = false;
  std::vector<int> warm_rows_;
  Witness witness_;
};

// The loop above for one row with its own scan.
RowStatus solve_row(RowSolver& solver, const KeyView& keys, const RowProblem& problem,
                    const RowSettings& settings, const ViolatorScan& scan,
                    std::vector<Violator>& buffer, std::span<const Multiplier> warm = {});

}  // namespace headfit
