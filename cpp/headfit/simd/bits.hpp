// Vectors and bits, one for each lane: comparisons that give them, and signs that are stored as them.
// Eigen has no such functions.
#pragma once

#include <array>
#include <bit>
#include <type_traits>

#include "headfit/simd/packet.hpp"

#if defined(EIGEN_VECTORIZE_SSE) || defined(EIGEN_VECTORIZE_AVX)
#include <immintrin.h>
#endif

namespace headfit::simd {

// One bit for each entry that exceeds the limit.
template <class T>
unsigned bits_above(const Packet<T>& x, const Packet<T>& limit) {
  constexpr bool is_float = std::is_same_v<T, float>;
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (is_float) return _mm512_cmp_ps_mask(x, limit, _CMP_GT_OQ);
  else return _mm512_cmp_pd_mask(x, limit, _CMP_GT_OQ);
#elif defined(EIGEN_VECTORIZE_AVX)
  if constexpr (is_float) return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(x, limit, _CMP_GT_OQ)));
  else return unsigned(_mm256_movemask_pd(_mm256_cmp_pd(x, limit, _CMP_GT_OQ)));
#elif defined(EIGEN_VECTORIZE_SSE)
  if constexpr (is_float) return unsigned(_mm_movemask_ps(_mm_cmpgt_ps(x, limit)));
  else return unsigned(_mm_movemask_pd(_mm_cmpgt_pd(x, limit)));
#else
  alignas(64) T a[lanes<T>];
  alignas(64) T b[lanes<T>];
  store(a, x);
  store(b, limit);
  unsigned bits = 0;
  for (Index l = 0; l < lanes<T>; ++l) bits |= static_cast<unsigned>(a[l] > b[l]) << l;
  return bits;
#endif
}

// Whether any of many vectors has an entry above its limit. The lanes are reduced only once, at the
// end.
template <class T>
class AnyAbove {
 public:
#if defined(EIGEN_VECTORIZE_AVX512)
  // One instruction: a comparison masked by the lanes in which nothing exceeded its limit so far.
  void look(const Packet<T>& x, const Packet<T>& limit) {
    if constexpr (std::is_same_v<T, float>) {
      below_ = _mm512_mask_cmp_ps_mask(below_, x, limit, _CMP_LE_OQ);
    } else {
      below_ = _mm512_mask_cmp_pd_mask(below_, x, limit, _CMP_LE_OQ);
    }
  }
  bool found() const { return below_ != all; }

 private:
  using Mask = std::conditional_t<std::is_same_v<T, float>, __mmask16, __mmask8>;
  static constexpr Mask all = static_cast<Mask>(~0u);
  Mask below_ = all;
#else
  void look(const Packet<T>& x, const Packet<T>& limit) { above_ |= bits_above<T>(x, limit); }
  bool found() const { return above_ != 0; }

 private:
  unsigned above_ = 0;
#endif
};

#if defined(EIGEN_VECTORIZE_AVX512)
// x in the lanes whose bit is set, -x in the others. Bits beyond the number of lanes are ignored.
inline Packet<float> with_signs(const Packet<float>& x, std::uint32_t bits) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), pnegate(x), x);
}
inline Packet<double> with_signs(const Packet<double>& x, std::uint32_t bits) {
  return _mm512_mask_blend_pd(static_cast<__mmask8>(bits), pnegate(x), x);
}
#else
namespace detail {
// For lane l a number with only bit l of the exponent field set. The bits are moved to the exponent
// field and masked with it: the result is zero or a normal number, so that the comparison with zero
// is right even where subnormal numbers count as zero.
template <class T>
struct ExponentBits {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  static constexpr int first = std::numeric_limits<T>::digits - 1;
  static constexpr std::array<T, std::size_t(lanes<T>)> of_lane = [] {
    std::array<T, std::size_t(lanes<T>)> a{};
    for (std::size_t l = 0; l < a.size(); ++l) a[l] = std::bit_cast<T>(Bits(1) << (first + int(l)));
    return a;
  }();
};
}  // namespace detail

template <class P>
P with_signs(const P& x, std::uint32_t bits) {
  using T = typename unpacket_traits<P>::type;
  using E = detail::ExponentBits<T>;
  const auto low = static_cast<typename E::Bits>(bits & ((1u << lanes<T>)-1));
  const P pattern = fill<T>(std::bit_cast<T>(static_cast<typename E::Bits>(low << E::first)));
  const P kept = pand(pattern, load(E::of_lane.data()));
  return pselect(pcmp_eq(kept, fill<T>(T(0))), pnegate(x), x);
}
#endif

}  // namespace headfit::simd
