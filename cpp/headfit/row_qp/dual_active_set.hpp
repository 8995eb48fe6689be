// The point of least norm in a polyhedron with free offsets, by a dual active-set method.
//
//   min 1/2 |q|^2   s.t.   sign_r (y_g(r) - k_r.q) >= rhs_r   (or = rhs_r)
//
// This is the method of Goldfarb and Idnani (1983). The most violated constraints enter first.
// Every step keeps the multipliers feasible and raises the dual objective, so no working set occurs
// twice; after each full step the point is the optimum over its working set. The objective does not
// depend on the offsets y; working_set.hpp tells how they are eliminated exactly. Constraints may
// be added between calls: the last working set stays dual feasible, so the next call can start from
// it.
#pragma once

#include <Eigen/Core>
#include <array>
#include <span>
#include <vector>

#include "headfit/base/checkpoint.hpp"
#include "headfit/row_qp/constraint_pool.hpp"
#include "headfit/row_qp/most_violated.hpp"
#include "headfit/row_qp/row_problem.hpp"
#include "headfit/row_qp/working_set.hpp"

namespace headfit {

class DualActiveSet {
 public:
  void reserve(int dim, int points, int rows);

  int add_point(const double* key, double norm) { return pool_.add_point(key, norm); }
  int add_row(int point, int group, double sign, double rhs, bool equality = false);
  // None of the constraints of the point may be active.
  void replace_point(int point, const double* key, double norm) {
    pool_.replace_point(point, key, norm);
  }
  void warm(std::span<const int> rows) { set_.warm(pool_, rows); }

  // `leave`: violations up to this, times max|rhs|, may remain. `refine`: whether the errors that
  // updates of the factor have gathered are removed at the end; otherwise they are removed only if
  // there were many updates.
  struct Effort {
    double leave;
    bool refine;
  };
  // Optimal, Infeasible, NormLimit, IterationLimit or Stalled.
  RowStatus solve(const RowSettings& settings, int max_steps, const Effort& effort);

  const Eigen::VectorXd& q() const { return set_.q; }
  const ConstraintPool& pool() const { return pool_; }
  double level(int group) const { return set_.level(pool_, group); }  // y_g
  bool active(int row) const { return set_.active(row); }
  double signed_multiplier(int row) const { return set_.signed_multiplier(row); }
  // The Farkas multiplier, after Infeasible.
  double signed_ray(int row) const { return ray_[row]; }
  int steps() const { return steps_; }
  // How much a constraint may be violated. The rounding error of q.k grows with |q|, and so does
  // this, but it stays small enough, compared with the right-hand sides, for a meaningful answer.
  double allowance(double tol, double relative_cap) const;

 private:
  enum class Step { Full, Tiny, Infeasible, Limit };
  struct Block {
    int row = -1;
    double length = std::numeric_limits<double>::infinity();
  };

  Step step(int row, const RowSettings& settings, int max_steps);
  void find_rates(int row, double sigma);
  Block ratio_test();
  void move(double sigma, double length);
  void keep_ray(int row, double sigma);
  double combined_size() const;

  ConstraintPool pool_;
  WorkingSet set_;
  MostViolated next_;
  Eigen::VectorXd d_, split_;  // of the constraint that enters
  Eigen::VectorXd rate_, length_;  // per column: the rate of u, and the step that makes u zero
  std::array<double, ConstraintPool::groups> base_rate_{};
  std::vector<double> ray_;
  int steps_ = 0;
  Checkpoints pace_;
};

}  // namespace headfit
