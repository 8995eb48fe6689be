// What the stream of logits asks of a fold: a class with
//   void begin(const RowBlock&);           // a new block of rows
//   void tile(const RowBlock&, const Tile<T>&);  // may overwrite the tile
//   void end(const RowBlock&);             // all tiles were seen
// and, when it wants whole rows kept, T* destination(const RowBlock&, Index stride)
// which gives the place where the block's rows lie side by side.
//
// A fold that only wants the logits above a limit has, in place of tile,
//   const T* limits(const RowBlock&);      // one a row, padded to whole row groups with inf;
//                                          // the fold may move them as it learns more
//   void hits(const RowBlock&, Index r, Index col, const T* logits, std::uint32_t bits);
// where bit b is set if logits[b], of row r and column col + b, exceeds the limit. Columns
// ascend within a row; a whole panel of logits can be read. Where no mask edge, bias or cap
// stands in the way, the logits then never leave the registers. If it has
// T* lowest(const RowBlock&) too (a vector for each row, padded like the limits), the least
// unmasked logits of the row are kept there, lane by lane.
//
// A fold that wants the sums of exponentials too has limits, hits and tile, and
//   ExpSums<T> sums(const RowBlock&);      // where the stream adds them, lane by lane; the fold
//                                          // may move shifts in hits, which come first
//   void settle(const RowBlock&);          // takes the sums up, after a few panels
// It sees tiles only where something stands in the way.
#pragma once

#include "headfit/logits/tile.hpp"

namespace headfit::detail {

template <class Fold>
inline constexpr bool wants_hits = requires(Fold& f, const RowBlock& b) { f.limits(b); };
template <class Fold>
inline constexpr bool wants_lowest = requires(Fold& f, const RowBlock& b) { f.lowest(b); };

template <class Fold>
inline constexpr bool wants_sums = requires(Fold& f, const RowBlock& b) { f.sums(b); };

}  // namespace headfit::detail
