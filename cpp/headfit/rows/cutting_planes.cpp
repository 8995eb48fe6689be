#include "headfit/rows/cutting_planes.hpp"

#include <algorithm>
#include <cmath>

#include "headfit/rows/face_witness.hpp"

namespace headfit {

RowStatus RowSolver::start(const KeyView& keys, const RowProblem& problem,
                           const RowSettings& settings, std::span<const Multiplier> warm) {
  keys_ = keys;
  problem_ = problem;
  settings_ = settings;
  const int dim = static_cast<int>(keys.cols);
  if (settings_.cuts_per_round <= 0) settings_.cuts_per_round = std::clamp(2 * dim, 16, 128);
  const int cuts = settings_.cuts_per_round;
  const int support = static_cast<int>(problem.support.size());
  // A working set holds at most dim + 2 points off the support: the floor leaves room
  // for it and for two rounds of cuts, so a slack point to evict always exists.
  const int floor = support + dim + 2 + 2 * cuts;
  const int wanted = settings.pool_points > 0
                         ? settings.pool_points
                         : support + 2 * dim + 3 * cuts;
  capacity_ = std::min<int>(std::max(floor, wanted), static_cast<int>(keys.rows));
  const int rows_a_key = problem.form == RowForm::Tolerance ? 3 : 1;
  const int rows = capacity_ + (rows_a_key - 1) * support;
  set_.reserve(dim, capacity_, rows);
  column_of_point_.reserve(capacity_);
  point_of_row_.reserve(rows);
  kind_of_row_.reserve(rows);
  warm_rows_.reserve(dim + 2);
  witness_.terms.reserve(dim + 3);
  column_of_point_.clear();
  point_of_row_.clear();
  kind_of_row_.clear();
  rounds_ = 0;

  add_support();
  query_.setZero(dim);
  seeding_ = warm.empty();
  if (seeding_) {
    // The hardest keys are near the support: its mean direction finds most of them.
    for (const auto j : problem.support) {
      query_ += Eigen::Map<const Eigen::VectorXd>(keys.row(j), dim);
    }
    threshold_ = -std::numeric_limits<double>::infinity();
    return status_ = RowStatus::NeedsScan;
  }
  warm_rows_.clear();
  for (const auto& term : warm) {
    int row = -1;
    if (term.kind == ConstraintKind::Outside) {
      row = insert(term.column);
    } else {
      for (int r = 0; r < first_outside_row_ && row < 0; ++r) {
        if (kind_of_row_[r] == term.kind && column_of_point_[point_of_row_[r]] == term.column) row = r;
      }
    }
    if (row >= 0) warm_rows_.push_back(row);
  }
  set_.warm(warm_rows_);
  return solve();
}

void RowSolver::add_support() {
  const double half = problem_.delta / 2;
  const auto row = [&](int point, int group, double sign, double rhs, ConstraintKind kind) {
    set_.add_row(point, group, sign, rhs, kind == ConstraintKind::RatioEqual);
    point_of_row_.push_back(point);
    kind_of_row_.push_back(kind);
  };
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < problem_.support.size(); ++i) {
    const double a = problem_.log_weights[i];
    least = std::min(least, a);
    const int point = set_.add_point(keys_.row(problem_.support[i]));
    column_of_point_.push_back(problem_.support[i]);
    if (problem_.form == RowForm::Equality) {
      row(point, 0, 1.0, -a, ConstraintKind::RatioEqual);
    } else {
      row(point, 0, 1.0, -(a + half), ConstraintKind::RatioUpper);
      row(point, 0, -1.0, a - half, ConstraintKind::RatioLower);
      row(point, 1, -1.0, problem_.log_leak, ConstraintKind::Margin);
    }
  }
  outside_rhs_ = problem_.form == RowForm::Equality
                     ? problem_.log_leak + problem_.delta - least : 0.0;
  first_outside_row_ = static_cast<int>(kind_of_row_.size());
}

int RowSolver::find(std::int32_t column) const {
  const auto at = std::find(column_of_point_.begin(), column_of_point_.end(), column);
  return at == column_of_point_.end() ? -1 : static_cast<int>(at - column_of_point_.begin());
}

int RowSolver::insert(std::int32_t column) {
  if (find(column) >= 0) return -1;
  if (set_.pool().points() < capacity_) {
    const int point = set_.add_point(keys_.row(column));
    column_of_point_.push_back(column);
    point_of_row_.push_back(point);
    kind_of_row_.push_back(ConstraintKind::Outside);
    return set_.add_row(point, problem_.form == RowForm::Tolerance ? 1 : 0, 1.0, outside_rhs_);
  }
  // Full: the slackest inactive cut gives its place. Objectives still rise from round
  // to round, so an evicted cut can come back but the same pool cannot.
  int evicted = -1;
  const auto product = [&](int r) { return set_.pool().product(point_of_row_[r]); };
  for (int r = first_outside_row_; r < set_.pool().rows(); ++r) {
    if (set_.active(r)) continue;
    if (evicted < 0 || product(r) < product(evicted)) evicted = r;
  }
  if (evicted < 0) return -1;
  set_.replace_point(point_of_row_[evicted], keys_.row(column));
  column_of_point_[point_of_row_[evicted]] = column;
  return evicted;
}

void RowSolver::set_threshold(double slack) {
  if (problem_.form == RowForm::Equality) {
    threshold_b_ = set_.level(0) - outside_rhs_;
  } else {
    // The largest b that the support allows; the solver's own b may sit lower while no
    // multiplier holds it.
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < problem_.support.size(); ++i) {
      least = std::min(least, set_.pool().product(static_cast<int>(i)));
    }
    threshold_b_ = least - problem_.log_leak;
  }
  threshold_ = threshold_b_ + slack;
}

RowStatus RowSolver::solve() {
  seeding_ = false;
  const int steps = settings_.max_steps > 0
                        ? settings_.max_steps
                        : 50 * (static_cast<int>(keys_.cols) + set_.pool().rows());
  status_ = set_.solve(settings_, steps);
  if (status_ == RowStatus::Infeasible || status_ == RowStatus::NormLimit) make_proof();
  query_ = set_.q();
  set_threshold(set_.allowance(settings_.scan_tol, settings_.rhs_tol));
  if (status_ == RowStatus::Optimal) {
    status_ = rounds_ < settings_.max_rounds ? RowStatus::NeedsScan : RowStatus::IterationLimit;
  }
  return status_;
}

RowStatus RowSolver::add(std::span<const Violator> found) {
  if (status_ != RowStatus::NeedsScan) return status_;
  ++rounds_;
  bool news = false;
  for (const auto& v : found) {
    if (v.value > threshold_ && insert(v.column) >= 0) news = true;
  }
  // What the scan still reports but the pool holds already is within the solver's own
  // tolerance: scanning again would return the same.
  if (news || seeding_) return solve();
  return status_ = RowStatus::Optimal;
}

// The solver's signed multipliers as multipliers of the constraints in their own sense.
double RowSolver::multiplier(int row, double signed_value) const {
  return set_.pool().equality(row) ? signed_value : set_.pool().sign(row) * signed_value;
}

void RowSolver::multipliers(std::vector<Multiplier>& out) const {
  out.clear();
  for (int r = 0; r < set_.pool().rows(); ++r) {
    if (!set_.active(r)) continue;
    out.push_back({kind_of_row_[r], column_of_point_[point_of_row_[r]],
                   multiplier(r, set_.signed_multiplier(r))});
  }
}

void RowSolver::make_proof() {
  std::vector<Multiplier> terms = std::move(witness_.terms);
  if (status_ == RowStatus::NormLimit) {
    multipliers(terms);
  } else {
    terms.clear();
    for (int r = 0; r < set_.pool().rows(); ++r) {
      const double u = set_.signed_ray(r);
      if (u == 0.0) continue;
      terms.push_back({kind_of_row_[r], column_of_point_[point_of_row_[r]], multiplier(r, u)});
    }
  }
  witness_ = make_witness(keys_, problem_, std::move(terms));
  const double proved = witness_.norm_bound * set_.pool().key_norm();
  const double enough = 0.1 * settings_.proof_ratio * set_.pool().rhs_size();
  if (status_ == RowStatus::Infeasible && !(proved >= enough || std::isinf(witness_.norm_bound))) {
    status_ = RowStatus::Stalled;
  }
}

RowStatus solve_row(RowSolver& solver, const KeyView& keys, const RowProblem& problem,
                    const RowSettings& settings, const ViolatorScan& scan,
                    std::vector<Violator>& buffer, std::span<const Multiplier> warm) {
  RowStatus status = solver.start(keys, problem, settings, warm);
  while (status == RowStatus::NeedsScan) {
    buffer.clear();
    scan(solver.query(), solver.threshold(), solver.limit(), buffer);
    status = solver.add(buffer);
  }
  return status;
}

}  // namespace headfit
