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

#include "headfit/row_qp/dual_active_set.hpp"
#include "headfit/row_qp/row_problem.hpp"

namespace headfit {

// What the constraints in a row's pool mean. Those of the support come first, followed by cuts, one
// for each column that a scan found. When the pool is full, cuts are evicted.
class RowConstraints {
 public:
  // Clears `set`, reserves memory, and adds the constraints of the support.
  void start(const KeyView& keys, const RowProblem& problem, int cuts_per_round, int pool_keys,
             DualActiveSet& set);
  // Adds the cut of a column. Returns its number in the pool, or -1 if the pool has it already.
  int insert(std::int32_t column, DualActiveSet& set);
  // Translates the solver's signed multiplier to one of the constraint as it is written in
  // row_problem.hpp.
  Multiplier term(int constraint, double signed_multiplier, const DualActiveSet& set) const;
  double outside_rhs() const { return outside_rhs_; }

 private:
  void add_support(const RowProblem& problem, DualActiveSet& set);
  int evict(std::int32_t column, DualActiveSet& set);
  std::int32_t column_of(int constraint, const DualActiveSet& set) const {
    return column_of_key_[set.pool().key_number(constraint)];
  }

  KeyView keys_;
  RowForm form_ = RowForm::Tolerance;
  int capacity_ = 0, first_cut_ = 0;
  double outside_rhs_ = 0.0;
  std::vector<std::int32_t> column_of_key_;
  std::vector<ConstraintKind> kind_;
};

class RowSolver {
 public:
  // The keys and the spans of `problem` must stay valid while the row is solved.
  RowStatus start(const KeyView& keys, const RowProblem& problem, const RowSettings& settings);
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
  double ratio_offset() const { return set_.free_offset(0); }  // c
  // The nonzero multipliers of the current working set; if the status is Optimal, those of the KKT
  // conditions.
  void multipliers(std::vector<Multiplier>& out) const;
  // The proof, if the status is Infeasible or NormLimit. The status becomes Infeasible only with a
  // proof.
  const Witness& witness() const { return witness_; }

  int rounds() const { return rounds_; }
  int steps() const { return set_.steps(); }
  int keys_kept() const { return set_.pool().keys(); }

 private:
  RowStatus solve(double violation);
  RowStatus solve_pool(const DualActiveSet::Accuracy& accuracy);
  RowStatus status_after_scan() const;
  RowStatus refine();
  void set_threshold();
  double scan_slack() const;
  void prove();

  KeyView keys_;
  RowProblem problem_;
  RowSettings settings_;
  DualActiveSet set_;
  RowConstraints constraints_;
  RowStatus status_ = RowStatus::Stalled;
  Eigen::VectorXd query_, scanned_;
  double threshold_ = 0.0, threshold_b_ = 0.0;  // b: min_S q.k - L
  int rounds_ = 0;
  bool is_first_scan_ = false, refined_ = false;
  Witness witness_;
};

// The loop above, for one row with a scan of its own.
RowStatus solve_row(RowSolver& solver, const KeyView& keys, const RowProblem& problem,
                    const RowSettings& settings, const ViolatorScan& scan,
                    std::vector<Violator>& buffer);

}  // namespace headfit
