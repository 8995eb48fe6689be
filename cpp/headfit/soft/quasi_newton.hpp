// Limited-memory BFGS (Nocedal 1980) with a preconditioner. The preconditioner models the curvature
// of each query and each key by itself; the memory of earlier steps models how they interact.
#pragma once

#include <cmath>
#include <deque>

#include "headfit/soft/preconditioner.hpp"

namespace headfit::soft {

// A dot product in double, in a fixed order.
template <class T>
double inner(const Matrix<T>& a, const Matrix<T>& b) {
  const Eigen::Map<const Vector<T>> x(a.data(), a.size()), y(b.data(), b.size());
  return x.template cast<double>().dot(y.template cast<double>());
}

template <class T, class Preconditioner = soft::Preconditioner<T>>
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

}  // namespace headfit::soft
