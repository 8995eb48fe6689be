// Comparisons of vectors with limits, whose result is one bit per lane. Eigen has no such
// functions.
#pragma once

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

}  // namespace headfit::simd
