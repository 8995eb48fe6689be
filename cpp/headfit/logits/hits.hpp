// Reports the logits above the limits of their rows to a fold. They come from whole tiles, or from
// the few panels of products that the microkernel has written.
#pragma once

#include <bit>

#include "headfit/logits/fold.hpp"
#include "headfit/logits/microkernel.hpp"
#include "headfit/logits/tile.hpp"

namespace headfit::detail {

// Reports the hits among the products of a row group and a panel; `found` holds the rows side by
// side, and its first entry has column `col`. Rows with hits are collected as bits first, since a
// branch for each row would be mispredicted too often.
template <class T, class Fold>
void report(const RowBlock& block, Index first, Index col, const T* found, Fold& fold) {
  using B = Blocking<T>;
  std::uint32_t bits[B::row_group];
  std::uint32_t rows = 0;
  const T* limits = fold.limits(block) + first;
  for (Index r = 0; r < B::row_group; ++r) {
    bits[r] = panel_bits_above(found + r * B::panel, limits[r]);
    rows |= static_cast<std::uint32_t>(bits[r] != 0) << r;
  }
  for (; rows != 0; rows &= rows - 1) {
    const int r = std::countr_zero(rows);
    fold.hits(block, first + r, col, found + r * B::panel, bits[r]);
  }
}

// Updates the smallest unmasked logits of each row, lane by lane; `lowest` holds a vector for each
// row of the tile.
template <class T>
void keep_lowest(const Tile<T>& tile, T* lowest);

// Reports the hits of a finished tile. Masked logits are -inf and exceed no limit.
template <class T, class Fold>
void search(const RowBlock& block, const Tile<T>& tile, Fold& fold) {
  if constexpr (has_lowest<Fold>) keep_lowest(tile, fold.lowest(block));
  using B = Blocking<T>;
  for (Index r = 0; r < tile.count; ++r) {
    const T* x = tile.row(r);
    for (Index c = 0; c < tile.padded_cols(); c += B::panel) {
      std::uint32_t bits = panel_bits_above(x + c, fold.limits(block)[r]);
      // The second half of the last panel may lie outside the tile.
      if (c + B::lanes == tile.padded_cols()) bits &= (1u << B::lanes) - 1;
      if (bits != 0) fold.hits(block, r, tile.col + c, x + c, bits);
    }
  }
}

}  // namespace headfit::detail
