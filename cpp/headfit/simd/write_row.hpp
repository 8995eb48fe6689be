// Writes rows of a result to memory. A result larger than the caches is written past them, by
// streaming stores: it would not stay in the caches anyhow, and its cache lines need not be read
// first. Memory that was never touched before is the exception: the system clears each of its pages
// at the first write, which brings the page into the caches.
#pragma once

#include <algorithm>
#include <cstdint>

#include "headfit/simd/packet.hpp"

#if defined(EIGEN_VECTORIZE_SSE)
#include <immintrin.h>
#endif

namespace headfit::simd {

enum class Store { cached, streamed };

// Results smaller than this stay in the caches for whoever reads them next.
inline constexpr Index streamed_bytes = Index(8) << 20;

template <Store how, class T>
void store_aligned(T* to, const Packet<T>& x) {
#if defined(EIGEN_VECTORIZE_SSE)
  if constexpr (how == Store::streamed) {
    // The store moves bits, whatever their type.
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

// After this call, other threads see the streamed stores before any later store.
inline void finish_streams() {
#if defined(EIGEN_VECTORIZE_SSE)
  _mm_sfence();
#endif
}

// Writes to[c] for c < count. values(c) returns the vector that starts at column c. It is called
// for vectors that reach beyond the end only if the whole row is shorter than a vector.
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
