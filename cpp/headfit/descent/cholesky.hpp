// The Cholesky factors of the small damped blocks that descents solve with: one block, or as many
// side by side as a vector has lanes.
//
// Eigen's LLT (`Factor` in base/linear_algebra.hpp) is not used here, because it stops at a pivot that
// rounding made negative, where a descent holds the pivot up. It also sums in another order, so that
// heads would differ in their last bits.
#pragma once

#include "headfit/simd/packet.hpp"

namespace headfit::descent {

// Finds the lower triangle L of H = L L^T, row by row. `h(a, b)` reads an entry of H, b <= a, and
// `l(a, b)` one of L that was stored before. `store(a, b, v)` stores one of L: v is L(a, b) L(b, b),
// where a = b the pivot.
template <class Read, class Lower, class Store>
EIGEN_ALWAYS_INLINE void cholesky(Index dim, const Read& h, const Lower& l, const Store& store) {
  for (Index a = 0; a < dim; ++a) {
    for (Index b = 0; b <= a; ++b) {
      auto v = h(a, b);
      for (Index c = 0; c < b; ++c) v = simd::psub(v, simd::pmul(l(a, c), l(b, c)));
      store(a, b, v);
    }
  }
}

}  // namespace headfit::descent
