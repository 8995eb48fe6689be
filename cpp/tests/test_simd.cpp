// Compares the exponential of a vector with that of the C library in long double.
#include <cmath>
#include <limits>

#include "check.hpp"
#include "headfit/simd/packet.hpp"

using namespace headfit;

namespace {

// The distance in units in the last place of the exact value; the unit is at least the least
// subnormal number.
template <class T>
double ulps(T got, long double exact) {
  const long double least = std::numeric_limits<T>::denorm_min();
  int exponent = 0;
  std::frexp(exact, &exponent);
  const long double unit =
      std::max(least, std::ldexp(1.0L, exponent - std::numeric_limits<T>::digits));
  return static_cast<double>(std::abs(static_cast<long double>(got) - exact) / unit);
}

template <class T>
T exp_one(T x, const simd::RowShift<T>& shift) {
  T out[64];
  simd::store(out, simd::exp_shifted<T>(simd::fill<T>(x), shift));
  for (Index l = 1; l < simd::lanes<T>; ++l) CHECK(out[l] == out[0]);
  return out[0];
}

template <class T>
long double exact_exp(T x, const simd::RowShift<T>& shift) {
  const long double ln2 = 0.693147180559945309417232121458176568L;
  return std::exp((static_cast<long double>(x) - static_cast<long double>(shift.subtract)) -
                  static_cast<long double>(shift.exponent) * ln2);
}

template <class T>
void check_near(T max, int samples, double depth) {
  const auto shift = simd::RowShift<T>::at(max);
  double worst = 0;
  T at = max;
  for (int i = 0; i <= samples; ++i) {
    const T x = static_cast<T>(static_cast<double>(max) - depth * i / samples);
    const double error = ulps(exp_one(x, shift), exact_exp(x, shift));
    if (error > worst) worst = error, at = x;
  }
  CHECK_THAT(worst <= 1.2, "worst ", worst, " ulp at ", at, " for a row maximum of ", max);
}

}  // namespace

TEST(float_exp_is_within_one_ulp) {
  // The arguments reach down to results that are subnormal (below max - 87) and 0 (max - 104).
  for (const float max : {0.0f, 1.0f, -1.0f, 0.34f, 17.3f, 88.0f, 100.5f, 255.9f, -88.7f, -200.3f,
                          -255.9f, 256.1f, 300.0f, 1e4f, -1e4f, 1e8f, -1e8f, 3e38f}) {
    check_near<float>(max, 20000, 120);
  }
}

TEST(double_exp_is_within_one_ulp) {
  for (const double max : {0.0, 1.0, -1.0, 0.34, 17.3, 700.0, -700.0, 2047.0, -2047.0, 2049.0, 1e4,
                           -1e4, 1e15, 1e300, -1e300}) {
    check_near<double>(max, 20000, 760);
  }
}

TEST(every_float_close_to_zero) {
  // Small steps from -0.4 to 0.4, which include 0 and the arguments at which n becomes -1 or 1.
  const simd::RowShift<float> none = simd::RowShift<float>::at(0.4f);
  double worst = 0;
  for (float x = -0.4f; x < 0.4f; x = std::nextafter(x, 1.0f)) {
    if (std::abs(x) < 0.05f) {
      x += 1e-6f;  // longer steps where floats are dense
    }
    worst = std::max(worst, ulps(exp_one(x, none), exact_exp(x, none)));
    x = std::nextafter(x + 3e-8f, 1.0f);
  }
  CHECK_THAT(worst <= 1.1, worst);
  CHECK(exp_one(0.0f, simd::RowShift<float>::at(0.0f)) == 1.0f);
  CHECK(exp_one(1e-45f, simd::RowShift<float>::at(0.0f)) == 1.0f);
}

template <class T>
void check_limits() {
  const T hidden = -std::numeric_limits<T>::infinity();
  const T most = std::numeric_limits<T>::max();
  for (const T max : {T(0), T(-250), T(250), T(1e4), T(-1e4), most, -most}) {
    const auto shift = simd::RowShift<T>::at(max);
    CHECK(exp_one(hidden, shift) == T(0));
    CHECK(exp_one(-most, shift) == (max == -most ? T(1) : T(0)));
    const T at_max = exp_one(max, shift);
    CHECK_THAT(at_max > T(0.70) && at_max < T(1.42), at_max, " at ", max);
  }
}

TEST(limits_float) { check_limits<float>(); }
TEST(limits_double) { check_limits<double>(); }

TEST(shift_is_a_power_of_two_in_range) {
  const auto shift = simd::RowShift<float>::at(100.0f);
  CHECK(shift.subtract == 0);
  CHECK(shift.exponent == std::nearbyint(shift.exponent));
  CHECK(std::abs(static_cast<double>(shift.exponent) * 0.6931471805599453 - 100) <= 0.35);
  const auto far = simd::RowShift<double>::at(1e5);
  CHECK(far.subtract == 1e5 && far.exponent == 0);
}
