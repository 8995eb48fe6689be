// How far a head may be from its target: the three tolerances, with their defaults and their check.
#pragma once

#include <limits>

namespace headfit {

// Row by row, with S the logits of the row and A the target's weights:
struct Tolerances {
  // exp(max S off the support - min S on it) is at most this; strictly between 0 and 1.
  double leak = 0.05;
  // exp(max - min of (S - log A) on the support) is at most 1 + this; finite, at least 0.
  double distortion = 0.1;
  // |S| is at most this wherever the mask allows attention; positive, infinite for no limit.
  double max_logit = std::numeric_limits<double>::infinity();

  bool limits_logits() const { return max_logit < std::numeric_limits<double>::infinity(); }

  // Throws an InputError that names the tolerance and its value. Every public function that takes
  // tolerances calls this first.
  void check() const;
};

}  // namespace headfit
