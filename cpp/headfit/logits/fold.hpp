// What the stream of logits asks of a fold, and the base class of folds that need whole rows.
//
// A fold is a class that sees the logits of one block of rows after the other, each from left to
// right, and keeps what it wants to know. Every thread has a fold of its own. There are three
// kinds: folds of whole tiles (TileFold), of the logits above a limit (LimitFold), and of sums of
// exponentials (SumFold). The stream takes a fold with sums() for a SumFold, one with limits() for
// a LimitFold, and every other one for a TileFold.
//
// Where a sparse mask leaves few entries in a block, or few beside the columns that they span for folds
// with `destination`, the stream computes these one by one in place of tiles, if the fold has
//   void entries(const RowBlock& block, Index row, const Entries<T>& entries);
// which is then all that it calls between begin and end, once for each row of the block
// (block.by_entries says so). Entries come in the order of their columns, and may be overwritten. A
// LimitFold without it gets entries as hits; every other fold without it gets tiles.
//
// A fold of any kind may also have
//   Index block_rows(const LogitSource<T>&) const;
// which says how many rows its blocks have. A multiple of Blocking<T>::row_group is best; without
// it they have Blocking<T>::tile_rows.
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <limits>

#include "headfit/logits/microkernel.hpp"
#include "headfit/logits/tile.hpp"

namespace headfit {

// begin(block): a new block of rows. end(block): all of its logits were seen.
template <class F>
concept BlockFold = std::move_constructible<F> && requires(F& fold, const RowBlock& block) {
  fold.begin(block);
  fold.end(block);
};

// tile(block, tile): the finished logits of a tile, which the fold may overwrite.
//
// With T* destination(const RowBlock&, Index stride) the tiles of a block lie side by side: it
// returns the place for the rows of the block, `stride` entries apart, which must have room for
// whole row groups. Tiles in which a sparse mask has no entry are -inf there, without a call of tile().
template <class F, class T>
concept TileFold = BlockFold<F> && requires(F& fold, const RowBlock& block, const Tile<T>& tile) {
  fold.tile(block, tile);
};

// limits(block): a limit for each row, padded with infinity to whole row groups. The fold may move
// its limits while it learns more.
//
// hits(block, row, column, logits, bits): bit b is set if logits[b], of this row of the block and
// of column + b, exceeds the row's limit. Columns ascend within a row, and a whole panel of logits
// can be read, of which those without a bit need not belong to columns nearby.
//
// Where no edge of a mask, bias or soft-cap stands in the way, logits at or below the limits never
// leave the registers they were computed in. With T* lowest(const RowBlock&), a vector for each
// row, padded like the limits, the stream also keeps the least logits of each row that are not
// masked, lane by lane.
template <class F, class T>
concept LimitFold =
    BlockFold<F> && requires(F& fold, const RowBlock& block, const T* logits, std::uint32_t bits) {
      { fold.limits(block) } -> std::convertible_to<const T*>;
      fold.hits(block, Index{}, Index{}, logits, bits);
    };

// sums(block): where the stream adds exponentials, a vector of sums for each row. The fold may move
// the shift of a row in hits, which is called before the logits concerned are added.
//
// settle(block): after a few panels the fold adds the vectors to sums of its own, and clears them.
//
// Such a fold also has limits and hits. It sees tiles only where an edge of a mask, bias or
// soft-cap stands in the way, and sums the logits of these tiles itself.
template <class F, class T>
concept SumFold = TileFold<F, T> && LimitFold<F, T> && requires(F& fold, const RowBlock& block) {
  { fold.sums(block) } -> std::same_as<ExpSums<T>>;
  fold.settle(block);
};

// Calls hit(c) for every entry above limit(), which hits may raise.
template <class T, class Limit, class Hit>
void for_hits(const Entries<T>& entries, const Limit& limit, const Hit& hit) {
  for (Index c = 0; c < entries.padded(); c += Blocking<T>::lanes) {
    auto bits = simd::bits_above<T>(simd::load(entries.data + c), simd::fill<T>(limit()));
    for (; bits != 0; bits &= bits - 1) {
      const Index at = c + std::countr_zero(bits);
      if (entries.data[at] > limit()) hit(at);
    }
  }
}

// How many whole rows a fold should hold: few enough to fit the cache beside the keys.
template <class T>
Index whole_row_block(Index cols) {
  using B = Blocking<T>;
  constexpr Index bytes = Index(1) << 19;
  const Index fits = bytes / std::max<Index>(1, cols * Index(sizeof(T)));
  return std::clamp(fits / B::row_group * B::row_group, B::row_group, B::tile_rows);
}

// A base class for folds that need whole rows at once: the rows of a block lie side by side in a
// buffer, with the columns from the block's first to its last. The buffer is the fold's own; with
// `Buffer<T>&` as the memory it is a thread's, which outlives its folds.
template <class T, class Memory = Buffer<T>>
class WholeRows {
 public:
  T* destination(const RowBlock& block, Index stride) {
    stride_ = stride;
    return rows_.ensure(size(block));
  }
  static Index block_rows(const LogitSource<T>& source) {
    return whole_row_block<T>(source.k.rows);
  }
  void begin(const RowBlock&) {}
  void tile(const RowBlock&, const Tile<T>&) {}

 protected:
  WholeRows() = default;
  explicit WholeRows(Buffer<T>& memory) requires std::is_reference_v<Memory> : rows_(memory) {}

  T* row(Index r) { return rows_.data() + r * stride_; }
  // Rows are this far apart.
  Index stride() const { return stride_; }
  // The entries that the rows of a block take, in whole row groups.
  Index size(const RowBlock& block) const {
    return round_up(block.count, Blocking<T>::row_group) * stride_;
  }
  static Index padded(const RowBlock& block) {
    return round_up(block.col_end - block.col_begin, simd::lanes<T>);
  }

 private:
  Memory rows_;
  Index stride_ = 0;
};

namespace detail {

template <class F>
inline constexpr bool has_limits = requires(F& fold, const RowBlock& block) { fold.limits(block); };
template <class F>
inline constexpr bool has_lowest = requires(F& fold, const RowBlock& block) { fold.lowest(block); };
template <class F, class T>
inline constexpr bool has_entries = requires(F& fold, const RowBlock& block, const Entries<T>& e) {
  fold.entries(block, Index{}, e);
};
template <class F>
inline constexpr bool has_destination =
    requires(F& fold, const RowBlock& block) { fold.destination(block, Index{}); };
template <class F>
inline constexpr bool has_sums = requires(F& fold, const RowBlock& block) { fold.sums(block); };

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
void keep_lowest(const Tile<T>& tile, T* lowest) {
  const auto hidden = simd::fill<T>(-std::numeric_limits<T>::infinity());
  const auto none = simd::fill<T>(std::numeric_limits<T>::infinity());
  for (Index r = 0; r < tile.count; ++r) {
    T* place = lowest + r * simd::lanes<T>;
    auto least = simd::load(place);
    for (Index c = 0; c < tile.padded_cols(); c += simd::lanes<T>) {
      const auto x = simd::load(tile.row(r) + c);
      least = simd::pmin(least, simd::pselect(simd::pcmp_eq(x, hidden), none, x));
    }
    simd::store(place, least);
  }
}

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

// Reports the hits among the entries of a row.
template <class T, class Fold>
void search(const RowBlock& block, Index r, const Entries<T>& entries, Fold& fold) {
  const T* x = entries.data;
  if constexpr (has_lowest<Fold>) {
    keep_lowest(Tile<T>{entries.data, 0, 1, 0, entries.count()},
                fold.lowest(block) + r * simd::lanes<T>);
  }
  for_hits(entries, [&] { return fold.limits(block)[r]; },
           [&](Index c) { fold.hits(block, r, entries.column(c), x + c, 1); });
}

// Says in one line what a fold lacks; the compiler adds which requirement is not met. Returns
// whether it lacks nothing, so that no other errors follow.
template <class F, class T>
consteval bool check_fold() {
  static_assert(
      BlockFold<F>,
      "a fold needs begin(const RowBlock&) and end(const RowBlock&), and must be movable");
  if constexpr (!BlockFold<F>) {
    return false;
  } else if constexpr (has_sums<F>) {
    static_assert(
        SumFold<F, T>,
        "a fold with sums() needs ExpSums<T> sums(const RowBlock&), "
        "settle(const RowBlock&), tile(const RowBlock&, const Tile<T>&), and the limits() "
        "and hits() of a LimitFold, see logits/fold.hpp");
    return SumFold<F, T>;
  } else if constexpr (has_limits<F>) {
    static_assert(LimitFold<F, T>,
                  "a fold with limits() needs const T* limits(const RowBlock&) and hits(const "
                  "RowBlock&, Index row, Index column, const T* logits, std::uint32_t bits), see "
                  "logits/fold.hpp");
    return LimitFold<F, T>;
  } else {
    static_assert(TileFold<F, T>,
                  "a fold of whole tiles needs tile(const RowBlock&, const Tile<T>&); a fold of "
                  "logits above a limit needs limits() and hits(), see logits/fold.hpp");
    return TileFold<F, T>;
  }
}

// How many rows the blocks of a fold have. The fold itself says so, see above.
template <class T, class MakeFold>
Index block_rows(const LogitSource<T>& source, const MakeFold& make_fold) {
  using Fold = decltype(make_fold());
  if constexpr (requires { Fold::block_rows(source); }) {
    return Fold::block_rows(source);
  } else if constexpr (requires(const Fold& fold) { fold.block_rows(source); }) {
    return make_fold().block_rows(source);
  } else {
    return Blocking<T>::tile_rows;
  }
}

}  // namespace detail
}  // namespace headfit
