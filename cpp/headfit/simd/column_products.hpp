// Products of one vector with the columns of a small matrix.
//
// For columns of about a hundred entries, summing the lanes of a vector of products takes as long
// as the products themselves. Here the lanes of several columns are transposed and summed together.
#pragma once

#include "headfit/simd/packet.hpp"

namespace headfit {

// How many columns are multiplied at a time: enough independent chains of multiply-adds to keep the
// processor busy.
inline constexpr Index product_group = 8;

namespace detail {

// out[i] = the sum of the lanes of sums[i].
template <class T>
void sum_lanes(const simd::Packet<T> (&sums)[product_group], T* out) {
  namespace ei = simd::ei;
  using Packet = simd::Packet<T>;
  using Half = typename ei::unpacket_traits<Packet>::half;
  constexpr bool is_wide = simd::lanes<T> > product_group;
  using Block = std::conditional_t<is_wide, Half, Packet>;
  constexpr Index lanes = ei::unpacket_traits<Block>::size;
  for (Index first = 0; first < product_group; first += lanes) {
    ei::PacketBlock<Block, lanes> block;
    auto& rows = block.packet;
    for (Index i = 0; i < lanes; ++i) {
      if constexpr (is_wide) rows[i] = ei::predux_half_dowto4(sums[first + i]);
      else rows[i] = sums[first + i];
    }
    if constexpr (lanes > 1) ei::ptranspose(block);
    for (Index half = lanes / 2; half > 0; half /= 2) {
      for (Index i = 0; i < half; ++i) rows[i] = ei::padd(rows[i], rows[i + half]);
    }
    ei::pstoreu(out + first, rows[0]);
  }
}

}  // namespace detail

// out[j] = column j . v for j < count. Columns are read, and `out` is written, in whole groups of
// `product_group`: both must have room for them.
template <class T>
void column_products(const T* columns, Index stride, Index dim, Index count, const T* v, T* out) {
  constexpr Index lanes = simd::lanes<T>;
  static_assert(lanes <= 2 * product_group);
  const Index whole = dim / lanes * lanes;
  for (Index first = 0; first < count; first += product_group) {
    const T* column = columns + first * stride;
    simd::Packet<T> sums[product_group];
    for (auto& sum : sums) sum = simd::fill<T>(T(0));
    for (Index r = 0; r < whole; r += lanes) {
      const auto x = simd::load(v + r);
      for (Index c = 0; c < product_group; ++c) {
        sums[c] = simd::ei::pmadd(simd::load(column + c * stride + r), x, sums[c]);
      }
    }
    detail::sum_lanes<T>(sums, out + first);
    for (Index r = whole; r < dim; ++r) {
      for (Index c = 0; c < product_group; ++c) out[first + c] += column[c * stride + r] * v[r];
    }
  }
}

}  // namespace headfit
