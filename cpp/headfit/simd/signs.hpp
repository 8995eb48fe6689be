// Applies signs that are stored as bits to vectors.
#pragma once

#include <array>
#include <bit>
#include <type_traits>

#include "headfit/simd/packet.hpp"

namespace headfit::simd {

#if defined(EIGEN_VECTORIZE_AVX512)
// x in the lanes whose bit is set, -x in the others. Bits beyond the number of lanes are ignored.
inline Packet<float> with_signs(const Packet<float>& x, std::uint32_t bits) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), ei::pnegate(x), x);
}
inline Packet<double> with_signs(const Packet<double>& x, std::uint32_t bits) {
  return _mm512_mask_blend_pd(static_cast<__mmask8>(bits), ei::pnegate(x), x);
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
  using T = typename ei::unpacket_traits<P>::type;
  using E = detail::ExponentBits<T>;
  const auto low = static_cast<typename E::Bits>(bits & ((1u << lanes<T>)-1));
  const P pattern = fill<T>(std::bit_cast<T>(static_cast<typename E::Bits>(low << E::first)));
  const P kept = ei::pand(pattern, load(E::of_lane.data()));
  return ei::pselect(ei::pcmp_eq(kept, fill<T>(T(0))), ei::pnegate(x), x);
}
#endif

}  // namespace headfit::simd
