// Steps to lower values of a function of a matrix: directions of limited-memory BFGS (Nocedal 1980)
// with a preconditioner, and a line search with Armijo's rule along them. The preconditioner models
// the curvature of parts of the matrix by themselves; the memory of earlier steps models how they
// interact.
#pragma once

#include <cmath>
#include <deque>
#include <limits>

#include "headfit/base/errors.hpp"
#include "headfit/base/types.hpp"

namespace headfit::descent {

// A dot product in double, in a fixed order.
template <class T>
double inner(const Matrix<T>& a, const Matrix<T>& b) {
  const Eigen::Map<const Vector<T>> x(a.data(), a.size()), y(b.data(), b.size());
  return x.template cast<double>().dot(y.template cast<double>());
}

// The steps that the method remembers, and the directions that follow from them. A preconditioner
// has apply(Matrix<T>&), which solves a linear system with its model of the Hessian, in place.
template <class T, class Preconditioner>
class QuasiNewton {
 public:
  QuasiNewton(Index memory, const Preconditioner& preconditioner)
      : memory_(static_cast<std::size_t>(memory)), preconditioner_(preconditioner) {}

  void forget() { pairs_.clear(); }
  bool remembers() const { return !pairs_.empty(); }

  // Remembers a step and the change of the gradient over it. Steps without positive curvature are
  // ignored.
  void learn(const Matrix<T>& step, const Matrix<T>& change) {
    const double product = inner(step, change);
    if (!(product > 1e-10 * std::sqrt(inner(step, step) * inner(change, change)))) return;
    if (pairs_.size() == memory_) {  // reuse the memory of the oldest pair
      pairs_.push_back(std::move(pairs_.front()));
      pairs_.pop_front();
    } else {
      pairs_.emplace_back();
    }
    Pair& pair = pairs_.back();
    pair.step = step;
    pair.change = change;
    pair.product = product;
  }

  // Turns a gradient into a direction of descent, in place.
  void to_direction(Matrix<T>& v) {
    for (auto p = pairs_.rbegin(); p != pairs_.rend(); ++p) {
      p->share = inner(p->step, v) / p->product;
      v -= static_cast<T>(p->share) * p->change;
    }
    double scale = 1;
    if (!pairs_.empty()) {
      const Pair& last = pairs_.back();
      solved_ = last.change;
      preconditioner_.apply(solved_);
      scale = last.product / inner(last.change, solved_);
    }
    preconditioner_.apply(v);
    v *= static_cast<T>(scale);
    for (const Pair& p : pairs_) {
      v += static_cast<T>(p.share - inner(p.change, v) / p.product) * p.step;
    }
    v = -v;
  }

 private:
  struct Pair {
    Matrix<T> step, change;
    double product = 0;
    double share = 0;
  };

  std::size_t memory_;
  const Preconditioner& preconditioner_;
  std::deque<Pair> pairs_;
  Matrix<T> solved_;
};

// A point that moves to lower values. The function is what callers pass as `evaluate`: it takes a
// point, writes the gradient there and returns the value. It may throw NonFiniteError where a step is
// so long that numbers overflow.
template <class T, class Preconditioner>
class LineSearch {
 public:
  LineSearch(Matrix<T> start, Index memory, const Preconditioner& preconditioner)
      : quasi_newton_(memory, preconditioner), point_(std::move(start)) {}

  const Matrix<T>& point() const { return point_; }
  double value() const { return value_; }
  Index evaluations() const { return evaluations_; }
  bool remembers() const { return quasi_newton_.remembers(); }
  // From here on directions depend on no step before.
  void forget() { quasi_newton_.forget(); }

  // Computes the function at the point itself, which was not done before or has changed.
  template <class Evaluate>
  void evaluate_here(const Evaluate& evaluate) {
    ++evaluations_;
    value_ = evaluate(point_, gradient_);
  }

  // Moves to a lower value. Returns false if the line search finds none, and leaves the point.
  // `noise` is by how much rounding may raise the value. After each length that was too long,
  // gives_up(gain) is asked, with what the slope predicts to gain by the next one.
  template <class Evaluate, class GivesUp>
  bool advance(const Evaluate& evaluate, double noise, const GivesUp& gives_up) {
    direction_ = gradient_;
    quasi_newton_.to_direction(direction_);
    const double slope = inner(gradient_, direction_);
    if (!(slope < 0) || !std::isfinite(slope)) return false;
    double length = 1;
    for (int trial = 0; trial < most_trials; ++trial) {
      next_ = point_ + static_cast<T>(length) * direction_;
      if (!next_.allFinite()) {
        length *= 0.1;
        continue;
      }
      const double value = evaluate_next(evaluate);
      if (value <= value_ + sufficient * length * slope + noise) {
        accept(value);
        return true;
      }
      // The minimum of the parabola through both values and the slope, within bounds.
      const double best = -slope * length * length / (2 * (value - value_ - slope * length));
      length = std::isfinite(best) ? std::clamp(best, 0.1 * length, 0.5 * length) : 0.1 * length;
      if (gives_up(-slope * length)) return false;
    }
    return false;
  }

 private:
  static constexpr double sufficient = 1e-4;  // share of the predicted decrease (Armijo's rule)
  static constexpr int most_trials = 12;  // step lengths that are tried

  template <class Evaluate>
  double evaluate_next(const Evaluate& evaluate) {
    ++evaluations_;
    try {
      return evaluate(next_, next_gradient_);
    } catch (const NonFiniteError&) {
      return std::numeric_limits<double>::infinity();
    }
  }

  void accept(double value) {
    next_.swap(point_);
    next_gradient_.swap(gradient_);
    next_ = point_ - next_;
    next_gradient_ = gradient_ - next_gradient_;
    quasi_newton_.learn(next_, next_gradient_);
    value_ = value;
  }

  QuasiNewton<T, Preconditioner> quasi_newton_;
  Matrix<T> point_, gradient_, direction_, next_, next_gradient_;
  double value_ = 0;
  Index evaluations_ = 0;
};

}  // namespace headfit::descent
