// Weighted sums of keys that are scattered in memory, from which a projection makes its queries.
// Keys are prefetched some time before they are needed; otherwise each would have to wait for
// memory.
#pragma once

#include <algorithm>

#include "headfit/simd/bits.hpp"

namespace headfit {

// The keys of one sum. ahead[p] is a key that is needed soon after columns[p], to be prefetched.
struct KeyList {
  const Column* columns;
  const Column* ahead;
  Index count;
};

// How many keys ahead to prefetch: enough bytes to cover the latency of memory, and few enough to
// stay in cache until they are used.
inline Index keys_ahead(Index key_bytes) {
  return std::max<Index>(8, (Index(1) << 14) / std::max<Index>(1, key_bytes));
}

inline void prefetch(const void* p) { simd::prefetch(static_cast<const char*>(p)); }

// Keys that are stored as a matrix.
template <class T>
class StoredKeys {
 public:
  static constexpr Index strip = 2048 / sizeof(T);  // number of columns that are summed at a time

  StoredKeys(const T* k, Index d, Index stride) : k_(k), d_(d), stride_(stride) {}

  Index ahead() const { return keys_ahead(std::min(d_, strip) * Index(sizeof(T))); }

  // out[c] = the sum over the list of weight * key[begin + c], for c < count, in the order of the
  // list.
  void sum(const KeyList& list, const T* weights, Index begin, Index count, T* out) const {
    Index c = 0;
    for (; c + 8 * lanes <= count; c += 8 * lanes) part<8>(list, weights, begin + c, out + c);
    for (; c + lanes <= count; c += lanes) part<1>(list, weights, begin + c, out + c);
    for (; c < count; ++c) {
      T x = 0;
      for (Index p = 0; p < list.count; ++p) {
        x = simd::pmadd(weights[p], key(list.columns[p])[begin + c], x);
      }
      out[c] = x;
    }
  }

 private:
  static constexpr Index lanes = simd::lanes<T>;

  const T* key(Index j) const { return k_ + j * stride_; }

  template <int width>
  EIGEN_ALWAYS_INLINE void part(const KeyList& list, const T* weights, Index at, T* out) const {
    simd::Packet<T> x[width];
    for (auto& v : x) v = simd::fill<T>(T(0));
    for (Index p = 0; p < list.count; ++p) {
      const T* k = key(list.columns[p]) + at;
      const T* later = key(list.ahead[p]) + at;
      const auto weight = simd::fill<T>(weights[p]);
      for (int i = 0; i < width; ++i) {
        if (i * lanes * Index(sizeof(T)) % 64 == 0) prefetch(later + i * lanes);
        x[i] = simd::pmadd(weight, simd::load(k + i * lanes), x[i]);
      }
    }
    for (int i = 0; i < width; ++i) simd::store(out + i * lanes, x[i]);
  }

  const T* k_;
  Index d_;
  Index stride_;
};

// Keys whose entries are all `size` or -size. Signs are stored as bits, in a thirty-second of the
// memory of floats.
template <class T>
class SignKeys {
 public:
  static constexpr Index strip = 2048;

  SignKeys(const std::uint32_t* bits, Index words, T size)
      : bits_(bits), words_(words), size_(size) {}

  Index ahead() const { return keys_ahead(std::min(4 * words_, strip / 8)); }

  // As in StoredKeys; `out` must have room for whole words of 32 columns.
  void sum(const KeyList& list, const T* weights, Index begin, Index count, T* out) const {
    for (Index p = 0; p < list.count; ++p) {
      for (Index c = 0; c < count; c += 512) prefetch(key(list.ahead[p]) + (begin + c) / 32);
    }
    const auto size = simd::fill<T>(size_);
    for (Index c = 0; c < count; c += 32) {
      simd::Packet<T> x[vectors];
      for (auto& v : x) v = simd::fill<T>(T(0));
      for (Index p = 0; p < list.count; ++p) {
        const std::uint32_t word = key(list.columns[p])[(begin + c) / 32];
        const auto weight = simd::fill<T>(weights[p]);
        for (int i = 0; i < vectors; ++i) {
          const auto signed_weight = simd::with_signs(weight, word >> (i * simd::lanes<T>));
          x[i] = simd::pmadd(signed_weight, size, x[i]);
        }
      }
      for (int i = 0; i < vectors; ++i) simd::store(out + c + i * simd::lanes<T>, x[i]);
    }
  }

 private:
  static constexpr int vectors = static_cast<int>(32 / simd::lanes<T>);

  const std::uint32_t* key(Index j) const { return bits_ + j * words_; }

  const std::uint32_t* bits_;
  Index words_;
  T size_;
};

}  // namespace headfit
