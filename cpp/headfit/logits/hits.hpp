// Logits above the limits of their rows, told to a fold: from whole tiles, or from the few
// products that the microkernel wrote.
#pragma once

#include <bit>

#include "headfit/logits/fold.hpp"
#include "headfit/logits/microkernel.hpp"
#include "headfit/logits/tile.hpp"

namespace headfit::detail {

// A row group times a panel, rows side by side, whose first entry has column `col`. Rows
// without hits are left out by bits, not by branches that nobody could foresee.
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

// Lane by lane the least logits of each row of a tile that are not hidden; `lowest` holds a vector
// for each row.
template <class T>
void keep_lowest(const Tile<T>& tile, T* lowest);

// A finished tile: what is hidden, -inf, exceeds no limit.
template <class T, class Fold>
void search(const RowBlock& block, const Tile<T>& tile, Fold& fold) {
  if constexpr (has_lowest<Fold>) keep_lowest(tile, fold.lowest(block));
  using B = Blocking<T>;
  for (Index r = 0; r < tile.count; ++r) {
    const T* x = tile.row(r);
    for (Index c = 0; c < tile.padded_cols(); c += B::panel) {
      std::uint32_t bits = panel_bits_above(x + c, fold.limits(block)[r]);
      // The second half of the last panel may be no part of the tile.
      if (c + B::lanes == tile.padded_cols()) bits &= (1u << B::lanes) - 1;
      if (bits != 0) fold.hits(block, r, tile.col + c, x + c, bits);
    }
  }
}

}  // namespace headfit::detail
