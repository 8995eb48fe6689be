// Solves one row of max-margin queries by cutting planes. Scans find violated constraints off the
// support, a few at a time, and each solve starts from the working set of the one before.
//
//   RowSolver solver;                                   // reuse it: buffers are kept
//   RowStatus s = solver.start(keys, problem, settings);
//   while (s == RowStatus::NeedsScan)                   // many rows can share one scan
//     s = solver.add(violators of solver.query() above solver.threshold());
//
// Each pool of constraints is a relaxation of the row's problem. So its optimum is a lower bound on
// the norm that the row needs, and a Farkas witness of the pool is one of the row.
#pragma once

#include <span>
#include <vector>

#include "headfit/row_qp/row_constraints.hpp"

namespace headfit {

class RowSolver {
 public:
  // The keys and the spans of `problem` must stay valid while the row is solved. `warm` may hold
  // the terms of an earlier multipliers(), for these or for slightly different keys and weights.
  // Their columns off the support must not be masked.
  RowStatus start(const KeyView& keys, const RowProblem& problem, const RowSettings& settings,
                  std::span<const Multiplier> warm = {});
  RowStatus add(std::span<const Violator> found);
  RowStatus status() const { return status_; }

  // If the status is Optimal, query() is the answer. If it is NeedsScan, a scan should look for at
  // most limit() keys whose product with query() exceeds threshold().
  std::span<const double> query() const {
    return {query_.data(), static_cast<size_t>(query_.size())};
  }
  double threshold() const { return threshold_; }
  int limit() const { return settings_.cuts_per_round; }

  double norm() const { return set_.q().norm(); }
  double ratio_offset() const { return set_.level(0); }  // c
  // The nonzero multipliers of the current working set; if the status is Optimal, those of the KKT
  // conditions.
  void multipliers(std::vector<Multiplier>& out) const;
  // The proof, if the status is Infeasible or NormLimit. The status becomes Infeasible only with a
  // proof.
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
  double threshold_ = 0.0, threshold_b_ = 0.0;  // b: min_S q.k - L
  int rounds_ = 0;
  bool seeding_ = false, refined_ = false;
  std::vector<int> warm_rows_;
  Witness witness_;
};

// The loop above, for one row with a scan of its own.
RowStatus solve_row(RowSolver& solver, const KeyView& keys, const RowProblem& problem,
                    const RowSettings& settings, const ViolatorScan& scan,
                    std::vector<Violator>& buffer, std::span<const Multiplier> warm = {});

}  // namespace headfit
