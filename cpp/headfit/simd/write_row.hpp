// Rows of a result on their way to memory. A result larger than the caches is written past
// them: nothing would find it there again, and lines need not be read before they are written.
// Not so where its pages are fresh: the system clears them at the first touch, into the caches.
#pragma once

#include <algorithm>
#include <cstdint>

#include "headfit/simd/packet.hpp"

#if defined(EIGEN_VECTORIZE_SSE)
#include <immintrin.h>
#endif

namespace headfit::simd {

enum class Store { cached, streamed };

// Results below this are left in the caches for whoever reads them next.
inline constexpr Index streamed_bytes = Index(8) << 20;

template <Store how, class T>
void store_aligned(T* to, const Packet<T>& x) {
#if defined(EIGEN_VECTORIZE_SSE)
  if constexpr (how == Store::streamed) {
    // The type of the bits does not matter to the store.
#if defined(EIGEN_VECTORIZE_AVX512)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<const __m512i&>(x));
#elif defined(EIGEN_VECTORIZE_AVX)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<const __m256i&>(x));
#else
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<const __m128i&>(x));
#endif
    return;
  }
#endif
  store(to, x);
}

// Other threads see streamed stores in order with what follows.
inline void finish_streams() {
#if defined(EIGEN_VECTORIZE_SSE)
  _mm_sfence();
#endif
}

// to[c] for c < count from values(c), a vector that starts at column c; those that reach
// beyond the end are asked for only if count is less than a vector.
template <Store how, class T, class Values>
void write_row(T* to, Index count, const Values& values) {
  constexpr Index width = lanes<T>;
  alignas(64) T part[width];
  const auto misplaced =
      static_cast<Index>(reinterpret_cast<std::uintptr_t>(to) / sizeof(T)) % width;
  const Index head = std::min(count, (width - misplaced) % width);
  if (head > 0) {
    store(part, values(Index(0)));
    std::copy_n(part, head, to);
  }
  Index c = head;
  for (; c + width <= count; c += width) store_aligned<how, T>(to + c, values(c));
  if (c < count) {
    const Index first = std::max<Index>(0, count - width);
    store(part, values(first));
    std::copy(part + (c - first), part + (count - first), to + c);
  }
}

}  // namespace headfit::simd
