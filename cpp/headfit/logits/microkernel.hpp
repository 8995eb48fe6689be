// The register-blocked matrix product of the package: a few rows times a panel of columns. It is
// made for the small inner dimensions of attention heads.
#pragma once

#include "headfit/logits/heads.hpp"
#include "headfit/simd/bits.hpp"

namespace headfit {

template <class T>
struct Blocking {
  static constexpr Index lanes = simd::lanes<T>;
  // AVX-512 has 32 vector registers, twice as many as the levels below it.
  static constexpr bool many_registers = sizeof(simd::Packet<T>) == 64;
  static constexpr Index row_group = many_registers ? 12 : 6;
  static constexpr Index panel = 2 * lanes;  // columns of a packed panel
  static constexpr Index tile_rows = 48;     // a multiple of row_group
  static constexpr Index tile_cols = 128;    // a multiple of panel
  static constexpr Index sum_panels = 4;     // panels whose exponentials are summed in T
};

static_assert(Blocking<float>::tile_rows % Blocking<float>::row_group == 0);
static_assert(Blocking<float>::tile_cols % Blocking<float>::panel == 0);

// Where the exponentials of a block's rows are summed: a vector of sums for each row, padded to
// whole row groups, and the common factor that the exponentials of each row leave out.
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

// Computes c = a b or c += a b, for `groups` row groups, of which `a` is the first, and a packed
// panel b (depth x panel). Every entry is one chain of multiply-adds over the depth, in order. So
// its value depends neither on its place in a tile, nor on the thread, nor on which fold asks for
// it.
template <Product how, class T, class Left>
void multiply_panel(Index groups, Index depth, Left a, const T* b, T* c, Index c_stride);

// Computes c[i] = q . (key columns[i]), i < count, for keys that are rows of `width` entries: the depth
// rounded up to whole vectors, padded with zeros. The query is padded with -0, so that the padding adds
// nothing and every entry is the chain that multiply_panel computes, bit for bit. c has room for whole
// vectors. Columns beyond `count` are probably those of the next call: their keys are fetched.
template <class T>
void multiply_entries(Index width, const T* q, const RowsInMemory<T>& keys,
                      std::span<const Column> columns, Index count, T* c);

// Adds weights[i] times the first `vectors` vectors of row columns[i] to `sums`. Each sum
// runs in `chains` chains, so that few vectors need not wait for the row before.
template <int vectors, int chains, class T>
void add_weighted_rows(const T* weights, const RowsInMemory<T>& rows,
                       std::span<const Column> columns, T* sums);

// A bit for each entry of a row of a panel, set where the entry exceeds the limit.
template <class T>
inline std::uint32_t panel_bits_above(const T* x, T limit) {
  using B = Blocking<T>;
  const auto bound = simd::fill<T>(limit);
  return simd::bits_above<T>(simd::load(x), bound) |
         simd::bits_above<T>(simd::load(x + B::lanes), bound) << B::lanes;
}

// Returns whether any product of a row r of `a` with the panel b exceeds limits[r]. Only then are
// the products written to c, rows side by side. With `with_lowest` the smallest products of each
// row are kept in `lowest` (row_group x lanes).
template <class T, bool with_lowest>
bool panel_exceeds(Index depth, const QueryGroup<T>& a, const T* b, const T* limits, T* lowest,
                   T* c);

// Adds exp(product - shift) to the sums of each row, unless a product exceeds the limit of its row.
// In that case the products are written to c instead, nothing is added, and the function returns
// true: the caller may have to move limits and shifts before it calls add_exponentials.
template <class T>
bool add_exponentials_below(Index depth, const QueryGroup<T>& a, const T* b, const T* limits,
                            const ExpSums<T>& to, T* c);
// Adds the exponentials of the products that were written to c.
template <class T>
void add_exponentials(const T* c, const ExpSums<T>& to);

}  // namespace headfit
