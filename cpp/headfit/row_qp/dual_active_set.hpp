// The point of least norm in a polyhedron with free offsets, by a dual active-set method.
//
//   min 1/2 |q|^2   s.t.   sign_i (y_g(i) - k_i.q) >= rhs_i   (or = rhs_i)
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
#include "headfit/row_qp/row_problem.hpp"
#include "headfit/row_qp/working_set.hpp"

namespace headfit {

// Chooses which constraint of a pool enters the working set next: the most violated one, or nearly
// so.
//
// A sweep over the whole pool takes longer than the step that follows it. Therefore the few most
// violated constraints of a sweep are kept in a list, and only when none of these is violated any
// more comes the next sweep. The search always ends with a sweep that finds nothing: it is done in
// single precision, and in double precision where that leaves doubt.
class MostViolated {
 public:
  void reserve(int constraints);
  // Returns a constraint outside the working set that is violated by more than `allowed`, or -1.
  int find(ConstraintPool& pool, const WorkingSet& set, double allowed);

 private:
  // For n=4096, k=8, d=96, lists of 3 to 5 are the fastest. Compared to 1, a list of 4 needs a third
  // of the sweeps and 7% more steps; one of 16 needs 27% more steps.
  static constexpr std::size_t list_length = 4;

  static constexpr int lanes = 8;

  struct Candidate {
    double slack;
    int constraint;
    bool is_worse_than(const Candidate& other) const {
      return slack < other.slack || (slack == other.slack && constraint < other.constraint);
    }
  };
  double slack(const ConstraintPool& pool, int constraint, double product) const;
  int worst_listed(const ConstraintPool& pool, const WorkingSet& set, double allowed) const;
  void sweep(const ConstraintPool& pool, const WorkingSet& set, double allowed);
  void list_worst(double allowed, int begin, int end);

  std::vector<Candidate> list_;  // the most violated constraints of the last sweep
  std::array<double, ConstraintPool::groups> free_offset_{};
  std::vector<double> slack_;  // one per constraint, padded to whole vectors
};

class DualActiveSet {
 public:
  void reserve(int dim, int keys, int constraints);

  int add_key(const double* key, double norm) { return pool_.add_key(key, norm); }
  int add(int key, int group, double sign, double rhs, bool is_equality = false);
  // None of the constraints of the key may be active.
  void replace_key(int number, const double* key, double norm) {
    pool_.replace_key(number, key, norm);
  }

  struct Accuracy {
    double violation;  // violations up to this, times max|rhs|, may remain
    // Whether the errors that updates of the factor have gathered are removed at the end; otherwise
    // they are removed only if there were many updates.
    bool refine;
  };
  // Optimal, Infeasible, NormLimit, IterationLimit or Stalled.
  RowStatus solve(const RowSettings& settings, int max_steps, const Accuracy& accuracy);

  const Eigen::VectorXd& q() const { return set_.q; }
  const ConstraintPool& pool() const { return pool_; }
  double free_offset(int group) const { return set_.free_offset(pool_, group); }  // y_g
  bool active(int constraint) const { return set_.active(constraint); }
  double signed_multiplier(int constraint) const { return set_.signed_multiplier(constraint); }
  // The Farkas multiplier, after Infeasible.
  double signed_ray(int constraint) const { return ray_[constraint]; }
  int steps() const { return steps_; }
  // How much a constraint may be violated. The rounding error of q.k grows with |q|, and so does
  // this, but it stays small enough, compared with the right-hand sides, for a meaningful answer.
  double allowance(double tol, double relative_cap) const;

 private:
  enum class Step { Full, Tiny, Infeasible, Limit };
  // The constraint whose multiplier reaches zero first in a step, and the length at which it does.
  struct Blocking {
    int constraint = -1;
    double length = std::numeric_limits<double>::infinity();
  };

  Step step(int entering, const RowSettings& settings, int max_steps);
  void find_rates(int entering, double sigma);
  Blocking ratio_test();
  void move(double sigma, double length);
  bool proves_infeasibility(int entering, double sigma, double slack, const RowSettings& settings);
  void store_ray(int entering, double sigma);
  double term_bound() const;

  ConstraintPool pool_;
  WorkingSet set_;
  MostViolated next_;
  Eigen::VectorXd d_, x_;  // the difference of the constraint that enters, and [z; c] of it
  Eigen::VectorXd rate_, length_;  // per column: the rate of u, and the step that makes u zero
  std::array<double, ConstraintPool::groups> base_rate_{};
  std::vector<double> ray_;
  int steps_ = 0;
  Checkpoints checkpoints_;
};

}  // namespace headfit
