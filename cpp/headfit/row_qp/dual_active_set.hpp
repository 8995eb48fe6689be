// Least-norm point of a polyhedron with free offsets, by a dual active-set method.
//
//   min 1/2 |q|^2   s.t.   sign_r (y_g(r) - k_r.q) >= rhs_r   (or = rhs_r)
//
// The method is Goldfarb and Idnani's (1983): rows enter in order of violation, every
// step keeps the multipliers feasible and raises the dual objective, so no working set
// returns, and the point after each full step is the optimum over its working set. The
// offsets y have no curvature: see working_set.hpp for how they are eliminated exactly.
// Rows may be added between calls: the old working set stays dual feasible (warm).
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
  // The point's rows must all be inactive.
  void replace_point(int point, const double* key, double norm) {
    pool_.replace_point(point, key, norm);
  }
  void warm(std::span<const int> rows) { set_.warm(pool_, rows); }

  // Violations up to `leave` times max|rhs| may stay. What updates gather in errors is tidied
  // away at the end, or left unless there are many.
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
  double signed_ray(int row) const { return ray_[row]; }           // same, after Infeasible
  int steps() const { return steps_; }
  // What a slack may miss: rounding of q.k grows with |q|, so this does, but never to
  // where the answer would stop meaning anything beside the right-hand sides.
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
  Eigen::VectorXd d_, split_;       // of the row that enters
  Eigen::VectorXd rate_, length_;   // of u, a column each: its rate, how far it is from zero
  std::array<double, ConstraintPool::groups> base_rate_{};
  std::vector<double> ray_;
  int steps_ = 0;
  Checkpoints pace_;
};

}  // namespace headfit
