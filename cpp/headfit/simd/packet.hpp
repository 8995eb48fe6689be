// The vector operations of the hot loops, written with Eigen's packets. They compile to the vector
// instructions of the CPU level.
#pragma once

#include <limits>

#include "headfit/base/types.hpp"

#if defined(EIGEN_VECTORIZE_AVX512)
#include <immintrin.h>
#endif

namespace headfit::simd {

// Eigen's operations on vectors ("packets") are internal to it, and other versions may name them
// otherwise. Therefore cmake/Eigen.cmake bounds the version, and no other file names an internal of
// Eigen: what the core uses of them is listed here.
using Eigen::internal::packet_traits, Eigen::internal::unpacket_traits;
using Eigen::internal::PacketBlock, Eigen::internal::ptranspose;  // a square of packets
using Eigen::internal::padd, Eigen::internal::pdiv, Eigen::internal::pmadd, Eigen::internal::pmul;
using Eigen::internal::pand, Eigen::internal::pcmp_eq, Eigen::internal::pcmp_lt;
using Eigen::internal::pfirst, Eigen::internal::predux, Eigen::internal::predux_max;
using Eigen::internal::ploadu, Eigen::internal::pstoreu;
using Eigen::internal::pmax, Eigen::internal::pmin, Eigen::internal::pselect, Eigen::internal::pabs;
using Eigen::internal::pnegate, Eigen::internal::psqrt, Eigen::internal::psub;
using Eigen::internal::predux_min;
using Eigen::internal::prefetch, Eigen::internal::pset1;
// Powers of two, where there is no AVX-512.
using Eigen::internal::parithmetic_shift_right, Eigen::internal::pcast, Eigen::internal::pldexp;
using Eigen::internal::plogical_shift_left, Eigen::internal::preinterpret;

template <class T>
using Packet = typename packet_traits<T>::type;

template <class T>
inline constexpr Index lanes = unpacket_traits<Packet<T>>::size;

template <class T>
Packet<T> fill(T x) {
  return pset1<Packet<T>>(x);
}
template <class T>
Packet<T> load(const T* p) {
  return ploadu<Packet<T>>(p);
}
template <class T>
void store(T* p, const Packet<T>& x) {
  pstoreu(p, x);
}
// Prefetches a run of numbers, which need not begin with a cache line, and then ends in one more.
template <class T>
void prefetch_run(const T* first, Index count) {
  for (Index i = 0; i < count; i += 64 / Index(sizeof(T))) prefetch(first + i);
  if (count > 0) prefetch(first + count - 1);
}

#if defined(EIGEN_VECTORIZE_AVX512)
// Transposes a square of 16 vectors in place, in less time than Eigen's code does.
inline void transpose16(__m512* x) {
  __m512 pairs[16], fours[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
  const auto joined = [](__m512 a, __m512 b, auto join) {
    return _mm512_castpd_ps(join(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  const auto low = [](__m512d a, __m512d b) { return _mm512_unpacklo_pd(a, b); };
  const auto high = [](__m512d a, __m512d b) { return _mm512_unpackhi_pd(a, b); };
  for (int i = 0; i < 16; i += 4) {
    for (int c = 0; c < 2; ++c) {
      fours[i + 2 * c] = joined(pairs[i + c], pairs[i + c + 2], low);
      fours[i + 2 * c + 1] = joined(pairs[i + c], pairs[i + c + 2], high);
    }
  }
  // A quarter of fours[4 i + c] holds column c of that quarter, of rows 4 i ... 4 i + 3.
  for (int c = 0; c < 4; ++c) {
    const __m512 even0 = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0x88);
    const __m512 even1 = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0x88);
    const __m512 odd0 = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0xdd);
    const __m512 odd1 = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0xdd);
    x[c] = _mm512_shuffle_f32x4(even0, even1, 0x88);
    x[8 + c] = _mm512_shuffle_f32x4(even0, even1, 0xdd);
    x[4 + c] = _mm512_shuffle_f32x4(odd0, odd1, 0x88);
    x[12 + c] = _mm512_shuffle_f32x4(odd0, odd1, 0xdd);
  }
}
#endif

template <class P, int count>
void transpose(PacketBlock<P, count>& square) {
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (count == 16) return transpose16(square.packet);
#endif
  ptranspose(square);
}

// Constants of exp(r) = 1 + r + r^2 P(r) for |r| <= ln(2)/2, where P interpolates at Chebyshev
// nodes. The error of the polynomial is 1.1e-8 in float (0.17 units of 2^-24) and 1.7e-17 in
// double. ln 2 = high + low, where high has so few bits that n * high is exact for |n| < 2^10.
template <class T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  static constexpr float p[] = {1.3926213466332445e-3f, 8.36320297157585495e-3f,
                                4.16665544376859389e-2f, 1.66665768459939763e-1f, 0.5f};
  static constexpr float ln2_high = 0.693115234375f;
  static constexpr float ln2_low = 3.1946183e-05f;
  static constexpr float round_to_integer = 12582912.0f;  // 1.5 * 2^23
  static constexpr float lowest_exponent = -252.0f;  // the least that times_power_of_two applies
  static constexpr float rounds_to_zero = -151.0f;   // 1.42 * 2^e is below half the least number
  static constexpr float exactly_reducible = 256.0f;
};

template <>
struct ExpConstants<double> {
  static constexpr double p[] = {2.51004241570050668e-8, 2.76201387197339956e-7,
                                 2.75572683786841929e-6, 2.48015211902177277e-5,
                                 1.98412698631059687e-4, 1.38888889172817933e-3,
                                 8.33333333333005135e-3, 4.16666666666239915e-2,
                                 1.66666666666666675e-1, 0.500000000000000103};
  static constexpr double ln2_high = 0.6931471804855391;
  static constexpr double ln2_low = 7.440617110012397e-11;
  static constexpr double round_to_integer = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double lowest_exponent = -2044.0;
  static constexpr double rounds_to_zero = -1076.0;
  static constexpr double exactly_reducible = 2048.0;
};

// x * 2^e for an integral e <= 2, rounded once. The result is set to 0 where 1.42 * 2^e rounds to
// 0: an underflow would take a hundred cycles per vector, and most weights of sharp attention are
// that small.
#if defined(EIGEN_VECTORIZE_AVX512)
inline constexpr bool masks_small_powers = true;  // NaN becomes 0 too, where e is -inf
inline Packet<float> times_power_of_two(const Packet<float>& x, const Packet<float>& e) {
  const auto least = _mm512_set1_ps(ExpConstants<float>::rounds_to_zero);
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(e, least, _CMP_GE_OQ), x, e);
}
inline Packet<double> times_power_of_two(const Packet<double>& x, const Packet<double>& e) {
  const auto least = _mm512_set1_pd(ExpConstants<double>::rounds_to_zero);
  return _mm512_maskz_scalef_pd(_mm512_cmp_pd_mask(e, least, _CMP_GE_OQ), x, e);
}
#else
inline constexpr bool masks_small_powers = false;
namespace detail {
// Multiplies in two steps, so that results below the normal range are rounded only once.
inline Packet<float> scaled(const Packet<float>& x, const Packet<float>& e) {
  using Bits = typename unpacket_traits<Packet<float>>::integer_packet;
  const Bits n = pcast<Packet<float>, Bits>(e);
  const Bits half = parithmetic_shift_right<1>(n);
  const Bits bias = pset1<Bits>(127);
  const auto power = [&](const Bits& k) {
    return preinterpret<Packet<float>>(plogical_shift_left<23>(padd(k, bias)));
  };
  return pmul(pmul(x, power(half)), power(psub(n, half)));
}
inline Packet<double> scaled(const Packet<double>& x, const Packet<double>& e) {
  return pldexp(x, e);
}
}  // namespace detail
template <class P>
P times_power_of_two(const P& x, const P& e) {
  using T = typename unpacket_traits<P>::type;
  using C = ExpConstants<T>;
  const P kept = pselect(pcmp_lt(e, fill<T>(C::rounds_to_zero)), fill<T>(T(0)), x);
  return detail::scaled(kept, pmax(e, fill<T>(C::lowest_exponent)));
}
#endif

// The exponentials of a row are computed without a common factor exp(subtract + exponent * ln 2).
// As a rule the factor is a power of two, whose removal causes no rounding. Only where logits are
// too large for an exact range reduction is the maximum of the row subtracted instead; there the
// subtraction is exact for every logit close enough to the maximum to matter (Sterbenz's lemma).
template <class T>
struct RowShift {
  T subtract = 0;
  T exponent = 0;

  static RowShift at(T row_max) {
    using C = ExpConstants<T>;
    if (row_max < -C::exactly_reducible || row_max > C::exactly_reducible) return {row_max, 0};
    return {0, std::nearbyint(row_max * T(1.4426950408889634))};
  }
};

// Computes exp(x) / exp(shift) to about one unit in the last place; -inf gives 0.
template <class T>
class ShiftedExp {
 public:
  explicit ShiftedExp(const RowShift<T>& shift)
      : subtract_(fill<T>(shift.subtract)),
        exponent_(fill<T>(shift.exponent)),
        floor_(fill<T>((shift.exponent + C::lowest_exponent) * C::ln2_high)) {}

  EIGEN_ALWAYS_INLINE Packet<T> operator()(const Packet<T>& x) const {
    // Clamping at the floor keeps everything below finite. It is not needed where lanes with tiny
    // results are masked anyhow.
    Packet<T> y = psub(x, subtract_);
    if constexpr (!masks_small_powers) y = pmax(y, floor_);
    const Packet<T> magic = fill<T>(C::round_to_integer);
    const Packet<T> n = psub(pmadd(y, fill<T>(T(1.4426950408889634)), magic), magic);
    Packet<T> r = pmadd(n, fill<T>(-C::ln2_high), y);
    r = pmadd(n, fill<T>(-C::ln2_low), r);
    Packet<T> p = fill<T>(C::p[0]);
    for (std::size_t i = 1; i < std::size(C::p); ++i) p = pmadd(p, r, fill<T>(C::p[i]));
    p = pmadd(pmul(r, r), p, r);
    p = padd(p, fill<T>(T(1)));
    return times_power_of_two(p, psub(n, exponent_));
  }

 private:
  using C = ExpConstants<T>;
  Packet<T> subtract_, exponent_, floor_;
};

template <class T>
Packet<T> exp_shifted(const Packet<T>& x, const RowShift<T>& shift) {
  return ShiftedExp<T>(shift)(x);
}

}  // namespace headfit::simd
