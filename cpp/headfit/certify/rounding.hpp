// Interval arithmetic: every result is a pair of doubles that enclose the exact value. Files that
// call these functions are compiled with -ffp-contract=off, and the code runs in standard arithmetic
// (base/standard_arithmetic.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "headfit/base/types.hpp"

// The proofs below fail where the compiler may assume that there is no NaN and no infinity, may
// reorder operations, or where intermediate results are wider than their types. GCC's macro
// __GCC_IEC_559 tells of every part of -ffast-math that departs from IEEE 754. Clang has macros for
// the first two only; cmake/StrictArithmetic.cmake looks for the others.
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
    (defined(__GCC_IEC_559) && __GCC_IEC_559 == 0)
#error "headfit's certificates must be compiled without -ffast-math and all parts of it"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "headfit's certificates need results rounded to their types (on x86: -mfpmath=sse)"
#endif

namespace headfit {

inline double next_up(double x) {
  return std::nextafter(x, std::numeric_limits<double>::infinity());
}
inline double next_down(double x) {
  return std::nextafter(x, -std::numeric_limits<double>::infinity());
}

// The upper bound to use where none can be proved: infinity.
inline constexpr double no_bound = std::numeric_limits<double>::infinity();

// A lower and an upper bound of a number. A bound that is unknown, or too large for a double, is
// infinite and never NaN, so that no comparison with it passes by accident.
struct Enclosure {
  double lo;
  double hi;

  static Enclosure exactly(double x) { return {x, x}; }
  static Enclosure unknown() { return {-no_bound, no_bound}; }
  static Enclosure around(double x, double radius) {
    if (!(radius < no_bound) || std::isnan(x)) return unknown();
    return {next_down(x - radius), next_up(x + radius)};
  }
};

inline Enclosure operator-(const Enclosure& a, const Enclosure& b) {
  const double lo = a.lo - b.hi;
  const double hi = a.hi - b.lo;
  return {std::isnan(lo) ? -no_bound : next_down(lo), std::isnan(hi) ? no_bound : next_up(hi)};
}

// The errors of the C library's log and exp are assumed to be at most 4 units in the last place
// (glibc, musl and the BSDs stay below 2). Where the result overflows to infinity, the largest
// double is a lower bound.
inline double widen_up(double x) {
  if (!std::isfinite(x)) return x;
  return x + 4 * std::numeric_limits<double>::epsilon() * std::abs(x) +
         4 * std::numeric_limits<double>::denorm_min();
}
inline double widen_down(double x) {
  const double y = std::min(x, std::numeric_limits<double>::max());
  if (!std::isfinite(y)) return y;
  return y - 4 * std::numeric_limits<double>::epsilon() * std::abs(y) -
         4 * std::numeric_limits<double>::denorm_min();
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

// An upper bound of a * b * c for factors >= 0, even where intermediate products overflow or
// underflow.
inline double product_above(double a, double b, double c) {
  constexpr double epsilon = std::numeric_limits<double>::epsilon();
  constexpr double low = 0x1p-960, high = 0x1p960;
  const double ab = a * b;
  const double abc = ab * c;
  if (ab > low && ab < high && abc > low && abc < high) return abc * (1 + 4 * epsilon);
  if (!(std::isfinite(a) && std::isfinite(b) && std::isfinite(c))) return no_bound;
  if (a == 0 || b == 0 || c == 0) return 0;
  int exponents[3];
  const double significand =
      std::frexp(a, &exponents[0]) * std::frexp(b, &exponents[1]) * std::frexp(c, &exponents[2]);
  return next_up(
      std::ldexp(significand * (1 + 4 * epsilon), exponents[0] + exponents[1] + exponents[2]));
}

// An upper bound of the Euclidean norm of a row (Higham, Accuracy and Stability, 3.1:
// a sum of d squares has relative error at most d u / (1 - d u), its root half of that).
template <class Row>
double norm_above(const Row& row) {
  const auto wide = row.template cast<double>();
  double sum = wide.squaredNorm();
  int exponent = 0;
  // Outside of this range squares overflow, or so many underflow that their sum may be wrong. Then
  // the row is first divided by a power of two that makes its largest entry about 1.
  if (!(sum > 0x1p-900 && sum < 0x1p1000)) {
    const double largest = row.size() > 0 ? wide.cwiseAbs().maxCoeff() : 0;
    if (largest == 0) return 0;
    if (!std::isfinite(largest)) return no_bound;
    exponent = std::ilogb(largest);
    sum = 0;
    for (Eigen::Index i = 0; i < row.size(); ++i) {
      const double x = std::ldexp(wide[i], -exponent);
      sum += x * x;
    }
  }
  const double d = static_cast<double>(row.size());
  const double norm = std::sqrt(sum) * (1 + (d + 4) * std::numeric_limits<double>::epsilon());
  return next_up(std::ldexp(norm, exponent));
}

// An upper bound of gamma_m = m u / (1 - m u), the relative error of m successive roundings in T
// (Higham, 3.1). Infinite where m u >= 1/2.
template <class T>
double gamma_above(double m) {
  const double u = static_cast<double>(std::numeric_limits<T>::epsilon()) / 2;
  return m * u < 0.5 ? next_up(next_up(m * u) / next_down(1 - m * u)) : no_bound;
}

// |computed - exact| <= relative * |scale| ||q|| ||k|| + absolute * (1 + ||k||) for a logit
// (scale * q).k computed in T, summed in any order, with at most `roundings` roundings from any
// input to the result. The absolute term covers underflow, in standard arithmetic.
struct DotBound {
  double relative;
  double absolute;

  template <class T>
  static DotBound of(Index depth, Index roundings) {
    const double d = static_cast<double>(depth);
    // For double this is the least normal number instead of the least subnormal one: to multiply
    // with a subnormal number takes CPUs a hundred cycles.
    const double lost = std::max(static_cast<double>(std::numeric_limits<T>::denorm_min()),
                                 std::numeric_limits<double>::min());
    return {gamma_above<T>(static_cast<double>(roundings)), (2 * d + 4) * lost};
  }

  double radius(double scale, double q_norm, double k_norm) const {
    if (!(relative < no_bound)) return no_bound;
    const double largest_logit = product_above(std::abs(scale), q_norm, k_norm);
    // The last factor covers the five roundings of this formula itself.
    return (relative * largest_logit + absolute * (1 + k_norm)) *
           (1 + 8 * std::numeric_limits<double>::epsilon());
  }
};

inline constexpr int float32_bits = 24;

// What tensor cores lose that keep fewer bits of sums than float32, or truncate: as many roundings of
// float32 lose as much. They add four products or more to an accumulator at a time. Each of these
// numbers is truncated to a multiple of 2^(1 - bits) of a power of 2 that the largest one reaches, and
// so is the result: d products, and an accumulator and a result in each of d / 4 steps.
inline double truncated_roundings(Index depth, int sum_bits) {
  const double d = static_cast<double>(depth);
  return sum_bits < float32_bits
             ? (d + 2 * std::ceil(d / 4)) * std::ldexp(2.0, float32_bits - sum_bits)
             : 0;
}

// A bound of |computed - exact| for a logit from any kernel that works in float32: any order of
// summation, with or without fused multiply-adds; the scale on q, on k, on the product,
// or its square root on both, perhaps times log2(e); inputs in float64 rounded to float32 first;
// subnormal numbers kept, or flushed to zero as inputs and as results.
//
// From an input to the result there are at most d + 9 roundings: d of the dot product, two of the
// inputs, and seven of the scale where its root is taken of fl(fl(scale) fl(log2(e))), namely half
// of three and one more for each of two roots, and one for each of two products. Underflow changes
// every input, scaled input and product by up to twice the least normal number, and a scale that
// is multiplied in last magnifies that. Sums that keep fewer bits lose more.
// The bound is infinite where one of these kernels may overflow at an intermediate result, or
// flush the scale itself.
inline double float32_kernels_radius(double scale, Index depth, int sum_bits, double q_norm,
                                     double k_norm) {
  constexpr double largest = static_cast<double>(std::numeric_limits<float>::max()) / 4;
  constexpr double least = static_cast<double>(std::numeric_limits<float>::min());
  const double d = static_cast<double>(depth);
  const double s = std::abs(scale);
  const double relative = gamma_above<float>(d + 9 + truncated_roundings(depth, sum_bits));
  const double largest_logit = product_above(s, q_norm, k_norm);
  for (const double reached : {largest_logit, q_norm, k_norm, product_above(1, q_norm, k_norm),
                               product_above(s, q_norm, 1), product_above(s, 1, k_norm)}) {
    if (!(reached < largest)) return no_bound;
  }
  if (!(s >= least && s < largest && relative < no_bound)) return no_bound;
  const double absolute = 16 * d * least * (1 + s) * (1 + q_norm + k_norm);
  return (relative * largest_logit + absolute) * (1 + 16 * std::numeric_limits<double>::epsilon());
}

}  // namespace headfit
