// The one register-blocked product of the package: a few rows times a panel of
// columns, for the skinny inner dimensions of attention heads.
#pragma once

#include "headfit/simd/comparisons.hpp"

namespace headfit {

template <class T>
struct Blocking {
  static constexpr Index lanes = simd::lanes<T>;
  static constexpr bool many_registers = sizeof(simd::Packet<T>) == 64;  // AVX-512: 32 of them
  static constexpr Index row_group = many_registers ? 12 : 6;
  static constexpr Index panel = 2 * lanes;  // columns of a packed panel
  static constexpr Index tile_rows = 48;     // a multiple of row_group
  static constexpr Index tile_cols = 128;    // a multiple of panel
  static constexpr Index sum_panels = 4;     // whose exponentials are summed in T
};

static_assert(Blocking<float>::tile_rows % Blocking<float>::row_group == 0);
static_assert(Blocking<float>::tile_cols % Blocking<float>::panel == 0);

// Where the exponentials of a block's rows are summed: a vector for each row, padded to whole row
// groups, and the factor that each leaves out.
template <class T>
struct ExpSums {
  const simd::RowShift<T>* shifts;
  T* lanes;

  ExpSums from(Index row) const { return {shifts + row, lanes + row * Blocking<T>::lanes}; }
};

// How the left operand lies in memory: entry (r, p) at data[r * row + p * depth].
template <class T>
struct LeftRows {
  const T* data;
  Index row;
  Index depth;
};

namespace detail {

// The products of a row group with a panel, in registers.
template <class T>
struct PanelSums {
  using B = Blocking<T>;
  static constexpr int rows = static_cast<int>(B::row_group);
  simd::Packet<T> at[rows][2];

  EIGEN_ALWAYS_INLINE PanelSums() {
    for (auto& row : at) row[0] = row[1] = simd::fill<T>(T(0));
  }
  EIGEN_ALWAYS_INLINE void store(T* c, Index stride) const {
    for (int r = 0; r < rows; ++r) {
      simd::store(c + r * stride, at[r][0]);
      simd::store(c + r * stride + B::lanes, at[r][1]);
    }
  }
};

// sum += a (row_group x depth) * b (depth x panel, packed). Every entry is one chain of
// multiply-adds over the depth, in order: the result depends neither on the place of the
// entry in a tile nor on the thread nor on what is done with it.
template <class T>
EIGEN_ALWAYS_INLINE void add_products(Index depth, const LeftRows<T>& a, const T* b,
                                      PanelSums<T>& sum) {
  namespace ei = Eigen::internal;
  using B = Blocking<T>;
  const T* left = a.data;
  for (Index p = 0; p < depth; ++p) {
    const auto b0 = simd::load(b);
    const auto b1 = simd::load(b + B::lanes);
    for (int r = 0; r < sum.rows; ++r) {
      const auto x = simd::fill<T>(left[r * a.row]);
      sum.at[r][0] = ei::pmadd(x, b0, sum.at[r][0]);
      sum.at[r][1] = ei::pmadd(x, b1, sum.at[r][1]);
    }
    b += B::panel;
    left += a.depth;
  }
}

}  // namespace detail

// c (row_group x panel) = or += a * b.
template <class T>
inline void multiply_panel(Index depth, const LeftRows<T>& a, const T* b, T* c, Index c_stride,
                           bool accumulate) {
  using B = Blocking<T>;
  detail::PanelSums<T> sum;
  for (int r = 0; accumulate && r < sum.rows; ++r) {
    sum.at[r][0] = simd::load(c + r * c_stride);
    sum.at[r][1] = simd::load(c + r * c_stride + B::lanes);
  }
  detail::add_products(depth, a, b, sum);
  sum.store(c, c_stride);
}

// One bit for each entry of a panel's row that exceeds the limit.
template <class T>
inline std::uint32_t panel_bits_above(const T* x, T limit) {
  using B = Blocking<T>;
  const auto bound = simd::fill<T>(limit);
  return simd::bits_above<T>(simd::load(x), bound) |
         simd::bits_above<T>(simd::load(x + B::lanes), bound) << B::lanes;
}

// Does any product a * b of row r exceed limits[r]? Only then are they written, to c, rows
// side by side. With `lowest` (row_group x lanes) the least products of each row are kept there.
template <class T, bool with_lowest>
inline bool panel_exceeds(Index depth, const LeftRows<T>& a, const T* b, const T* limits, T* lowest,
                          T* c) {
  namespace ei = Eigen::internal;
  using B = Blocking<T>;
  detail::PanelSums<T> sum;
  detail::add_products(depth, a, b, sum);
  simd::AnyAbove<T> above;
  for (int r = 0; r < sum.rows; ++r) {  // both in one: a scan takes 1.16 times as long with two
    above.look(ei::pmax(sum.at[r][0], sum.at[r][1]), simd::fill<T>(limits[r]));
    if constexpr (with_lowest) {
      T* place = lowest + r * B::lanes;
      simd::store(place, ei::pmin(ei::pmin(sum.at[r][0], sum.at[r][1]), simd::load(place)));
    }
  }
  if (!above.found()) return false;
  sum.store(c, B::panel);
  return true;
}

// Adds exp(product - shift) of each row to its lanes. If a product exceeds its row's limit, they
// are written to c before, and told() may move limits and shifts. Not inlined: the constants of
// exp would be kept in registers that the products need.
template <class T, class Told>
EIGEN_DONT_INLINE void add_exponentials(Index depth, const LeftRows<T>& a, const T* b,
                                        const T* limits, const ExpSums<T>& to, T* c,
                                        const Told& told) {
  namespace ei = Eigen::internal;
  using B = Blocking<T>;
  const auto add = [&](int r, const auto& left, const auto& right) {
    const simd::ShiftedExp<T> shifted_exp(to.shifts[r]);
    const auto terms = ei::padd(shifted_exp(left), shifted_exp(right));
    simd::store(to.lanes + r * B::lanes, ei::padd(simd::load(to.lanes + r * B::lanes), terms));
  };
  detail::PanelSums<T> sum;
  detail::add_products(depth, a, b, sum);
  simd::AnyAbove<T> above;
  for (int r = 0; r < sum.rows; ++r) {
    above.look(ei::pmax(sum.at[r][0], sum.at[r][1]), simd::fill<T>(limits[r]));
  }
  if (above.found()) {
    sum.store(c, B::panel);
    told();
    const T* row = c;
    for (int r = 0; r < sum.rows; ++r, row += B::panel) {
      add(r, simd::load(row), simd::load(row + B::lanes));
    }
    return;
  }
  for (int r = 0; r < sum.rows; ++r) add(r, sum.at[r][0], sum.at[r][1]);
}

}  // namespace headfit
