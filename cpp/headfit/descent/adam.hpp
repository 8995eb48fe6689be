// Adam (Kingma and Ba 2015), for maps whose numbers take steps of lengths of their own.
#pragma once

#include <cmath>
#include <numbers>

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

}  // namespace headfit::descent
