#include "headfit/logits/hits.hpp"

namespace headfit::detail {

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

template void keep_lowest(const Tile<float>&, float*);
template void keep_lowest(const Tile<double>&, double*);

}  // namespace headfit::detail
