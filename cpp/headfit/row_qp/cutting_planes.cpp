#include "headfit/row_qp/cutting_planes.hpp"

#include <algorithm>
#include <cmath>

#include "headfit/row_qp/face_witness.hpp"

namespace headfit {

namespace {
// How much the solution for the first pool of constraints may violate them, relative to max|rhs|.
// It need not be exact, since keys that no scan has found yet will move the query further. For
// n=4096, k=8, d=96 this saves a sixth of the steps without more scans; with 0.3 and more, or in
// the second round too, there are more scans. Easy rows (k=2) need a tenth more scans.
constexpr double first_leave = 0.2;
}  // namespace

RowStatus RowSolver::start(const KeyView& keys, const RowProblem& problem,
                           const RowSettings& settings, std::span<const Multiplier> warm) {
  keys_ = keys;
  problem_ = problem;
  settings_ = settings;
  const int dim = static_cast<int>(keys.cols);
  if (settings_.cuts_per_round <= 0) settings_.cuts_per_round = std::clamp(2 * dim, 16, 128);
  constraints_.start(keys, problem, settings_.cuts_per_round, settings_.pool_points, set_);
  warm_rows_.reserve(dim + 2);
  witness_.terms.reserve(dim + 3);
  rounds_ = 0;

  query_.setZero(dim);
  seeding_ = warm.empty();
  if (seeding_) {
    // The first scan takes the mean of the support's keys as its query: the keys that violate most
    // lie in that direction.
    for (const auto j : problem.support) {
      query_ += Eigen::Map<const Eigen::VectorXd>(keys.row(j), dim);
    }
    threshold_ = -std::numeric_limits<double>::infinity();
    return status_ = RowStatus::NeedsScan;
  }
  warm_rows_.clear();
  for (const auto& term : warm) {
    const int row = constraints_.row_of(term, set_);
    if (row >= 0) warm_rows_.push_back(row);
  }
  set_.warm(warm_rows_);
  return solve(0.0);
}

void RowSolver::set_threshold() {
  if (problem_.form == RowForm::Equality) {
    threshold_b_ = set_.level(0) - constraints_.outside_rhs();
  } else {
    // The largest b that the support allows. The b of the solver may be lower as long as no
    // constraint on it is active.
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < problem_.support.size(); ++i) {
      least = std::min(least, set_.pool().key_of_point(static_cast<int>(i)).dot(set_.q()));
    }
    threshold_b_ = least - problem_.log_leak;
  }
  threshold_ = threshold_b_ + scan_slack();
}

// Half of the violation that is tolerated. The other half is for the point to move in refine().
double RowSolver::scan_slack() const {
  return set_.allowance(settings_.scan_tol, settings_.rhs_tol) / 2;
}

RowStatus RowSolver::solve(double leave) {
  seeding_ = false;
  refined_ = rounds_ >= settings_.max_rounds;
  status_ = solve_pool({refined_ ? 0.0 : leave, refined_});
  if (status_ == RowStatus::Optimal) status_ = after_this_scan();
  return status_;
}

RowStatus RowSolver::after_this_scan() const {
  return rounds_ < settings_.max_rounds ? RowStatus::NeedsScan : RowStatus::IterationLimit;
}

RowStatus RowSolver::solve_pool(const DualActiveSet::Effort& effort) {
  const int steps = settings_.max_steps > 0
                        ? settings_.max_steps
                        : 50 * (static_cast<int>(keys_.cols) + set_.pool().rows());
  status_ = set_.solve(settings_, steps, effort);
  if (status_ == RowStatus::Infeasible || status_ == RowStatus::NormLimit) make_proof();
  query_ = set_.q();
  set_threshold();
  return status_;
}

RowStatus RowSolver::add(std::span<const Violator> found) {
  if (status_ != RowStatus::NeedsScan) return status_;
  ++rounds_;
  bool news = false;
  for (const auto& v : found) {
    if (v.value > threshold_ && constraints_.insert(v.column, set_) >= 0) news = true;
  }
  // If the pool holds all reported constraints already, they are violated by less than the
  // tolerance of the solver, and another scan would report the same.
  if (news || seeding_) return solve(seeding_ ? first_leave : 0.0);
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
  if (!(moved <= scan_slack())) status_ = after_this_scan();
  return status_;
}

void RowSolver::multipliers(std::vector<Multiplier>& out) const {
  out.clear();
  for (int r = 0; r < set_.pool().rows(); ++r) {
    if (set_.active(r)) out.push_back(constraints_.term(r, set_.signed_multiplier(r), set_));
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
      if (u != 0.0) terms.push_back(constraints_.term(r, u, set_));
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
