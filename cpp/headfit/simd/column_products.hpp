// Products of one vector with the columns of a small matrix.
//
// For columns of about a hundred entries, summing the lanes of a vector of products takes as long
// as the products themselves. Here the lanes of several columns are transposed and summed together.
#pragma once

#include <type_traits>

#include "headfit/simd/packet.hpp"

#if defined(EIGEN_VECTORIZE_AVX512)
#include <immintrin.h>
#endif

namespace headfit {

// How many columns are multiplied at a time: enough independent chains of multiply-adds to keep the
// processor busy.
inline constexpr Index product_group = 8;

namespace detail {

// A vector of more lanes than columns in a group is folded: its halves are added.
template <class P>
const P& folded(const P& x) {
  return x;
}
#if defined(EIGEN_VECTORIZE_AVX512)
inline __m256 folded(const simd::Packet<float>& x) {
  const __m256d upper = _mm512_extractf64x4_pd(_mm512_castps_pd(x), 1);
  return _mm256_add_ps(_mm512_castps512_ps256(x), _mm256_castpd_ps(upper));
}
#endif

// out[i] = the sum of the lanes of sums[i].
template <class T>
void sum_lanes(const simd::Packet<T> (&sums)[product_group], T* out) {
  using Block = std::remove_cvref_t<decltype(folded(sums[0]))>;
  constexpr Index lanes = simd::unpacket_traits<Block>::size;
  static_assert(lanes <= product_group);
  for (Index first = 0; first < product_group; first += lanes) {
    simd::PacketBlock<Block, lanes> block;
    auto& rows = block.packet;
    for (Index i = 0; i < lanes; ++i) rows[i] = folded(sums[first + i]);
    if constexpr (lanes > 1) simd::transpose(block);
    for (Index half = lanes / 2; half > 0; half /= 2) {
      for (Index i = 0; i < half; ++i) rows[i] = simd::padd(rows[i], rows[i + half]);
    }
    simd::pstoreu(out + first, rows[0]);
  }
}

}  // namespace detail

// out[j] = column j . v for j < count. Columns are read, and `out` is written, in whole groups of
// `product_group`: both must have room for them.
template <class T>
void column_products(const T* columns, Index stride, Index dim, Index count, const T* v, T* out) {
  constexpr Index lanes = simd::lanes<T>;
  const Index whole = dim / lanes * lanes;
  for (Index first = 0; first < count; first += product_group) {
    const T* column = columns + first * stride;
    simd::Packet<T> sums[product_group];
    for (auto& sum : sums) sum = simd::fill<T>(T(0));
    for (Index r = 0; r < whole; r += lanes) {
      const auto x = simd::load(v + r);
      for (Index c = 0; c < product_group; ++c) {
        sums[c] = simd::pmadd(simd::load(column + c * stride + r), x, sums[c]);
      }
    }
    detail::sum_lanes<T>(sums, out + first);
    for (Index r = whole; r < dim; ++r) {
      for (Index c = 0; c < product_group; ++c) out[first + c] += column[c * stride + r] * v[r];
    }
  }
}

}  // namespace headfit
