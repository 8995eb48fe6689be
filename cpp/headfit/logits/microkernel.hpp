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

// A row group of packed queries (pack.hpp): entry (r, p) at data[r * row + p * column].
template <class T>
struct QueryGroup {
  const T* data;
  static constexpr Index row = 1;
  static constexpr Index column = Blocking<T>::row_group;

  QueryGroup next(Index depth) const { return {data + depth * column}; }
};

// A row group of a row-major matrix, rows `row` entries apart.
template <class T>
struct RowGroup {
  const T* data;
  Index row;
  static constexpr Index column = 1;

  RowGroup next(Index) const { return {data + Blocking<T>::row_group * row, row}; }
};

enum class Product { stored, added };

// c = or += a b for so many row groups, of which `a` is the first, and a packed panel b
// (depth x panel). Every entry is one chain of multiply-adds over the depth, in order: the result
// depends neither on the place of the entry in a tile nor on the thread nor on what is done with
// it.
template <Product how, class T, class Left>
void multiply_panel(Index groups, Index depth, Left a, const T* b, T* c, Index c_stride);

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
bool panel_exceeds(Index depth, const QueryGroup<T>& a, const T* b, const T* limits, T* lowest,
                   T* c);

// Adds exp(product - shift) of each row to its lanes, if no product exceeds its row's limit. If one
// does, the products are written to c and nothing is added: limits and shifts may have to move
// first. Returns whether one does.
template <class T>
bool add_exponentials_below(Index depth, const QueryGroup<T>& a, const T* b, const T* limits,
                            const ExpSums<T>& to, T* c);
// Adds the exponentials of products that were written to c.
template <class T>
void add_exponentials(const T* c, const ExpSums<T>& to);

}  // namespace headfit
