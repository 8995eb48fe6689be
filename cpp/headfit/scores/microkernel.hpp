// The one register-blocked product of the package: a few rows times a panel of
// columns, for the skinny inner dimensions of attention heads.
#pragma once

#include "headfit/scores/packet.hpp"

namespace headfit {

template <class T>
struct Blocking {
  static constexpr Index lanes = simd::lanes<T>;
  static constexpr bool many_registers = sizeof(simd::Packet<T>) == 64;  // AVX-512: 32 of them
  static constexpr Index row_group = many_registers ? 12 : 6;
  static constexpr Index panel = 2 * lanes;  // columns of a packed panel
  static constexpr Index tile_rows = 24;     // a multiple of row_group
  static constexpr Index tile_cols = 256;    // a multiple of panel
};

static_assert(Blocking<float>::tile_rows % Blocking<float>::row_group == 0);
static_assert(Blocking<float>::tile_cols % Blocking<float>::panel == 0);

// How the left operand lies in memory: entry (r, p) at data[r * row + p * depth].
template <class T>
struct LeftRows {
  const T* data;
  Index row;
  Index depth;
};

// c (row_group x panel) = or += a (row_group x depth) * b (depth x panel, packed).
// Every entry is one chain of multiply-adds over the depth, in order: the result
// depends neither on the place of the entry in a tile nor on the thread.
template <class T>
inline void multiply_panel(Index depth, const LeftRows<T>& a, const T* b, T* c, Index c_stride,
                           bool accumulate) {
  namespace ei = Eigen::internal;
  using B = Blocking<T>;
  using Packet = simd::Packet<T>;
  constexpr int rows = static_cast<int>(B::row_group);
  Packet sum[rows][2];
  for (int r = 0; r < rows; ++r) {
    sum[r][0] = accumulate ? simd::load(c + r * c_stride) : simd::fill<T>(T(0));
    sum[r][1] = accumulate ? simd::load(c + r * c_stride + B::lanes) : simd::fill<T>(T(0));
  }
  const T* left = a.data;
  for (Index p = 0; p < depth; ++p) {
    const Packet b0 = simd::load(b);
    const Packet b1 = simd::load(b + B::lanes);
    for (int r = 0; r < rows; ++r) {
      const Packet x = simd::fill<T>(left[r * a.row]);
      sum[r][0] = ei::pmadd(x, b0, sum[r][0]);
      sum[r][1] = ei::pmadd(x, b1, sum[r][1]);
    }
    b += B::panel;
    left += a.depth;
  }
  for (int r = 0; r < rows; ++r) {
    simd::store(c + r * c_stride, sum[r][0]);
    simd::store(c + r * c_stride + B::lanes, sum[r][1]);
  }
}

}  // namespace headfit
