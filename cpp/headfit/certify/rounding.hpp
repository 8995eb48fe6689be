// Arithmetic that encloses: every result is a pair of doubles around the exact value.
// This file and everything that includes it is compiled without contraction.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "headfit/base/types.hpp"

namespace headfit {

inline double next_up(double x) {
  return std::nextafter(x, std::numeric_limits<double>::infinity());
}
inline double next_down(double x) {
  return std::nextafter(x, -std::numeric_limits<double>::infinity());
}

struct Enclosure {
  double lo;
  double hi;

  static Enclosure exactly(double x) { return {x, x}; }
  static Enclosure around(double x, double radius) {
    return {next_down(x - radius), next_up(x + radius)};
  }
};

inline Enclosure operator-(const Enclosure& a, const Enclosure& b) {
  return {next_down(a.lo - b.hi), next_up(a.hi - b.lo)};
}

// log and exp of the C library are assumed right to 4 units in the last place
// (glibc, musl and the BSDs stay below 2).
inline double widen_up(double x) {
  return x + 4 * std::numeric_limits<double>::epsilon() * std::abs(x) +
         std::numeric_limits<double>::denorm_min();
}
inline double widen_down(double x) {
  return x - 4 * std::numeric_limits<double>::epsilon() * std::abs(x) -
         std::numeric_limits<double>::denorm_min();
}
inline Enclosure log(double x) {
  const double y = std::log(x);
  return {widen_down(y), widen_up(y)};
}
inline Enclosure exp(const Enclosure& x) {
  return {std::max(0.0, widen_down(std::exp(x.lo))), widen_up(std::exp(x.hi))};
}
inline Enclosure expm1(const Enclosure& x) {
  return {widen_down(std::expm1(x.lo)), widen_up(std::expm1(x.hi))};
}

// An upper bound of the Euclidean norm of a row (Higham, Accuracy and Stability, 3.1:
// a sum of d squares has relative error at most d u / (1 - d u), its root half of that).
template <class Row>
double norm_above(const Row& row) {
  const double sum = row.template cast<double>().squaredNorm();
  const double d = static_cast<double>(row.size());
  // Squares below the normal range may be lost: each at most the least normal number.
  const double lost = d * std::numeric_limits<double>::min();
  return next_up(std::sqrt(sum + lost) * (1 + (d + 4) * std::numeric_limits<double>::epsilon()));
}

// |computed - exact| <= relative * |scale| ||q|| ||k|| + absolute * (1 + ||k||) for a logit
// scale * q.k computed in T with `roundings` roundings on the longest path, summed in
// any order (Higham, 3.1: gamma_m = m u / (1 - m u)). The absolute term is for what
// underflows, flushed to zero or not.
struct DotBound {
  double relative;
  double absolute;

  template <class T>
  static DotBound of(Index depth, Index roundings) {
    const double u = static_cast<double>(std::numeric_limits<T>::epsilon()) / 2;
    const double m = static_cast<double>(roundings);
    const double d = static_cast<double>(depth);
    const double relative = m * u < 0.5 ? next_up(next_up(m * u) / next_down(1 - m * u))
                                        : std::numeric_limits<double>::infinity();
    return {relative, (2 * d + 4) * static_cast<double>(std::numeric_limits<T>::min())};
  }

  double radius(double scale, double q_norm, double k_norm) const {
    const double size = std::abs(scale) * q_norm * k_norm;
    // Five roundings upward at the end, each at most a unit of the last place.
    return (relative * size + absolute * (1 + k_norm)) *
           (1 + 8 * std::numeric_limits<double>::epsilon());
  }
};

}  // namespace headfit
