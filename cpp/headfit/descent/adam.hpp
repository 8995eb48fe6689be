// Adam (Kingma and Ba 2015), for maps whose numbers take steps of lengths of their own.
#pragma once

#include <cmath>
#include <numbers>

#include "headfit/base/checkpoint.hpp"
#include "headfit/base/types.hpp"

namespace headfit::descent {

inline constexpr double first_decay = 0.9, second_decay = 0.99;

// The length of a step at some place of a descent, as a share of the longest one: it rises over
// `warm_up` steps, and falls like a cosine.
inline double step_share(Index step, Index steps, Index warm_up) {
  const double place = static_cast<double>(step) / static_cast<double>(steps);
  const double rise = std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(warm_up));
  return rise * 0.5 * (1 + std::cos(std::numbers::pi * place));
}

// The root of the mean square.
double size_of(const Matrix<float>& x);

// One step of the matrix x by its gradient, with the means of the gradients and of their squares.
struct AdamStep {
  float length, correction;
  void advance(Matrix<float>& x, const Matrix<float>& gradient, Matrix<float>& mean,
               Matrix<float>& square, const Matrix<float>& unit) const;
};

// `Maps` has for_each(work, others...), which calls work(matrix, that of each other ...).
template <class Maps>
class Adam {
 public:
  explicit Adam(const Maps& zero) : first_(zero), second_(zero) {}

  // Makes a step of the length `rate`, in units of `unit` for each number.
  void advance(Maps& maps, Maps& gradient, Maps& unit, double rate) {
    ++steps_;
    const auto left = [&](double decay) { return 1 - std::pow(decay, steps_); };
    const AdamStep step{static_cast<float>(rate / left(first_decay)),
                        static_cast<float>(1 / left(second_decay))};
    maps.for_each([&](auto& x, auto& g, auto& m, auto& v, auto& u) { step.advance(x, g, m, v, u); },
                  gradient, first_, second_, unit);
  }

 private:
  Maps first_, second_;
  int steps_ = 0;
};

struct AdamSchedule {
  Index steps;
  double largest_rate;
  Index warm_up;  // steps over which the rate rises
  Index look_every;  // steps
};

template <class Maps>
struct JudgedMaps {
  Maps maps;
  double loss;
};

// Descends from a start, and returns the maps that are judged best: the start, or those after every
// few steps. to_gradient(maps, gradient) writes the gradient, which is zeros before; judge(maps)
// returns their loss.
template <class Maps, class ToGradient, class Judge>
JudgedMaps<Maps> best_by_adam(const JudgedMaps<Maps>& start, Maps unit,
                              const AdamSchedule& schedule, const ToGradient& to_gradient,
                              const Judge& judge) {
  const auto set_zero = [](auto& x) { x.setZero(); };
  JudgedMaps<Maps> best = start;
  Maps maps = start.maps, gradient = start.maps;
  gradient.for_each(set_zero);
  Adam<Maps> adam(gradient);
  for (Index step = 0; step < schedule.steps; ++step) {
    checkpoint();
    gradient.for_each(set_zero);
    to_gradient(maps, gradient);
    const double share = step_share(step, schedule.steps, schedule.warm_up);
    adam.advance(maps, gradient, unit, schedule.largest_rate * share);
    // Gradients of very large keys overflow.
    bool is_finite = true;
    maps.for_each([&](const auto& x) { is_finite = is_finite && x.allFinite(); });
    if (!is_finite) break;
    const bool is_last = step + 1 == schedule.steps;
    if ((step + 1) % schedule.look_every != 0 && !is_last) continue;
    const double loss = judge(maps);
    if (loss < best.loss) best = {maps, loss};
  }
  return best;
}

}  // namespace headfit::descent
