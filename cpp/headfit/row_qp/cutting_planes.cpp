#include "headfit/row_qp/cutting_planes.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "headfit/row_qp/proofs.hpp"

namespace headfit {

namespace {
// How much the solution for the first pool of constraints may violate them, relative to max|rhs|.
// It need not be exact, since keys that no scan has found yet will move the query further. For
// n=4096, k=8, d=96 this saves a sixth of the steps without more scans; with 0.3 and more, or in
// the second round too, there are more scans. Easy rows (k=2) need a tenth more scans.
constexpr double first_violation = 0.2;
}  // namespace

void RowConstraints::start(const KeyView& keys, const RowProblem& problem, int cuts_per_round,
                           int pool_keys, DualActiveSet& set) {
  keys_ = keys;
  form_ = problem.form;
  const int dim = static_cast<int>(keys.cols);
  const int support = static_cast<int>(problem.support.size());
  // A working set has at most dim + 2 keys off the support. With room for these and for two
  // rounds of cuts there is always an inactive cut to evict.
  const int floor = support + dim + 2 + 2 * cuts_per_round;
  const int wanted = pool_keys > 0 ? pool_keys : support + 2 * dim + 3 * cuts_per_round;
  capacity_ = std::min<int>(std::max(floor, wanted), static_cast<int>(keys.rows));
  const int per_support_key = problem.form == RowForm::Tolerance ? 3 : 1;
  const int constraints = capacity_ + (per_support_key - 1) * support;
  set.reserve(dim, capacity_, constraints);
  column_of_key_.reserve(capacity_);
  kind_.reserve(constraints);
  column_of_key_.clear();
  kind_.clear();
  add_support(problem, set);
}

void RowConstraints::add_support(const RowProblem& problem, DualActiveSet& set) {
  const double half = problem.delta / 2;
  const auto add = [&](int key, int group, double sign, double rhs, ConstraintKind kind) {
    set.add(key, group, sign, rhs, kind == ConstraintKind::RatioEqual);
    kind_.push_back(kind);
  };
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < problem.support.size(); ++i) {
    const double a = problem.log_weights[i];
    const std::int32_t column = problem.support[i];
    least = std::min(least, a);
    const int key = set.add_key(keys_.row(column), keys_.norm(column));
    column_of_key_.push_back(column);
    if (problem.form == RowForm::Equality) {
      add(key, 0, 1.0, -a, ConstraintKind::RatioEqual);
    } else {
      add(key, 0, 1.0, -(a + half), ConstraintKind::RatioUpper);
      add(key, 0, -1.0, a - half, ConstraintKind::RatioLower);
      add(key, 1, -1.0, problem.log_leak, ConstraintKind::Margin);
    }
  }
  outside_rhs_ = problem.form == RowForm::Equality ? problem.log_leak + problem.delta - least : 0.0;
  first_cut_ = static_cast<int>(kind_.size());
}

int RowConstraints::insert(std::int32_t column, DualActiveSet& set) {
  // Compares with all columns, which is vectorized, since nearly every column is new.
  int known = 0;
  for (const std::int32_t c : column_of_key_) known += c == column ? 1 : 0;
  if (known > 0) return -1;
  if (set.pool().keys() == capacity_) return evict(column, set);
  const int key = set.add_key(keys_.row(column), keys_.norm(column));
  column_of_key_.push_back(column);
  kind_.push_back(ConstraintKind::Outside);
  return set.add(key, form_ == RowForm::Tolerance ? 1 : 0, 1.0, outside_rhs_);
}

// Replaces the inactive cut with the largest slack. An evicted cut may come back later, but the
// same pool cannot occur again, since the objective rises from round to round.
int RowConstraints::evict(std::int32_t column, DualActiveSet& set) {
  int evicted = -1;
  const auto product = [&](int i) { return set.pool().product(set.pool().key_number(i)); };
  for (int i = first_cut_; i < set.pool().size(); ++i) {
    if (set.active(i)) continue;
    if (evicted < 0 || product(i) < product(evicted)) evicted = i;
  }
  if (evicted < 0) return -1;
  const int key = set.pool().key_number(evicted);
  set.replace_key(key, keys_.row(column), keys_.norm(column));
  column_of_key_[key] = column;
  return evicted;
}

Multiplier RowConstraints::term(int constraint, double signed_multiplier,
                                const DualActiveSet& set) const {
  const double sign = set.pool().is_equality(constraint) ? 1.0 : set.pool().sign(constraint);
  return {kind_[constraint], column_of(constraint, set), sign * signed_multiplier};
}

RowStatus RowSolver::start(const KeyView& keys, const RowProblem& problem,
                           const RowSettings& settings) {
  keys_ = keys;
  problem_ = problem;
  settings_ = settings;
  const int dim = static_cast<int>(keys.cols);
  if (settings_.cuts_per_round <= 0) settings_.cuts_per_round = std::clamp(2 * dim, 16, 128);
  constraints_.start(keys, problem, settings_.cuts_per_round, settings_.pool_keys, set_);
  witness_.terms.reserve(dim + 3);
  rounds_ = 0;

  // The first scan takes the mean of the support's keys as its query: the keys that violate most
  // lie in that direction.
  is_first_scan_ = true;
  query_.setZero(dim);
  for (const auto j : problem.support) {
    query_ += Eigen::Map<const Eigen::VectorXd>(keys.row(j), dim);
  }
  threshold_ = -std::numeric_limits<double>::infinity();
  return status_ = RowStatus::NeedsScan;
}

void RowSolver::set_threshold() {
  if (problem_.form == RowForm::Equality) {
    threshold_b_ = set_.free_offset(0) - constraints_.outside_rhs();
  } else {
    // The largest b that the support allows. The b of the solver may be lower as long as no
    // constraint on it is active.
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < problem_.support.size(); ++i) {
      least = std::min(least, set_.pool().key_at(static_cast<int>(i)).dot(set_.q()));
    }
    threshold_b_ = least - problem_.log_leak;
  }
  threshold_ = threshold_b_ + scan_slack();
}

// Half of the violation that is tolerated. The other half is for the point to move in refine().
double RowSolver::scan_slack() const {
  return set_.allowance(settings_.scan_tol, settings_.rhs_tol) / 2;
}

RowStatus RowSolver::solve(double violation) {
  is_first_scan_ = false;
  refined_ = rounds_ >= settings_.max_rounds;
  status_ = solve_pool({refined_ ? 0.0 : violation, refined_});
  if (status_ == RowStatus::Optimal) status_ = status_after_scan();
  return status_;
}

RowStatus RowSolver::status_after_scan() const {
  return rounds_ < settings_.max_rounds ? RowStatus::NeedsScan : RowStatus::IterationLimit;
}

RowStatus RowSolver::solve_pool(const DualActiveSet::Accuracy& accuracy) {
  const int steps = settings_.max_steps > 0
                        ? settings_.max_steps
                        : 50 * (static_cast<int>(keys_.cols) + set_.pool().size());
  status_ = set_.solve(settings_, steps, accuracy);
  if (status_ == RowStatus::Infeasible || status_ == RowStatus::NormLimit) prove();
  query_ = set_.q();
  set_threshold();
  return status_;
}

RowStatus RowSolver::add(std::span<const Violator> found) {
  if (status_ != RowStatus::NeedsScan) return status_;
  ++rounds_;
  bool is_new = false;
  for (const auto& v : found) {
    if (v.value > threshold_ && constraints_.insert(v.column, set_) >= 0) is_new = true;
  }
  // If the pool holds all reported constraints already, they are violated by less than the
  // tolerance of the solver, and another scan would report the same.
  if (is_new || is_first_scan_) return solve(is_first_scan_ ? first_violation : 0.0);
  return refined_ ? status_ = RowStatus::Optimal : refine();
}

// Only in the last round must the point be free of the errors that its updates have gathered. As a
// rule it moves by so little that the scan of the unrefined point is valid for the refined one too.
RowStatus RowSolver::refine() {
  scanned_ = query_;
  const double scanned_b = threshold_b_;
  refined_ = true;
  if (solve_pool({0.0, true}) != RowStatus::Optimal) return status_;
  const double moved = (query_ - scanned_).norm() * keys_.largest_norm + scanned_b - threshold_b_;
  if (!(moved <= scan_slack())) status_ = status_after_scan();
  return status_;
}

void RowSolver::multipliers(std::vector<Multiplier>& out) const {
  out.clear();
  for (int i = 0; i < set_.pool().size(); ++i) {
    if (set_.active(i)) out.push_back(constraints_.term(i, set_.signed_multiplier(i), set_));
  }
}

void RowSolver::prove() {
  std::vector<Multiplier> terms = std::move(witness_.terms);
  if (status_ == RowStatus::NormLimit) {
    multipliers(terms);
  } else {
    terms.clear();
    for (int i = 0; i < set_.pool().size(); ++i) {
      const double u = set_.signed_ray(i);
      if (u != 0.0) terms.push_back(constraints_.term(i, u, set_));
    }
  }
  witness_ = make_witness(keys_, problem_, std::move(terms));
  const double proved = witness_.norm_bound * set_.pool().largest_norm();
  const double enough = 0.1 * settings_.proof_ratio * set_.pool().largest_rhs();
  if (status_ == RowStatus::Infeasible && !(proved >= enough || std::isinf(witness_.norm_bound))) {
    status_ = RowStatus::Stalled;
  }
}

RowStatus solve_row(RowSolver& solver, const KeyView& keys, const RowProblem& problem,
                    const RowSettings& settings, const ViolatorScan& scan,
                    std::vector<Violator>& buffer) {
  RowStatus status = solver.start(keys, problem, settings);
  while (status == RowStatus::NeedsScan) {
    buffer.clear();
    scan(solver.query(), solver.threshold(), solver.limit(), buffer);
    status = solver.add(buffer);
  }
  return status;
}

}  // namespace headfit
