// Scratch memory that a thread keeps from one task to the next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "headfit/base/types.hpp"

namespace headfit {

// Asks for huge pages for memory that was not touched yet: keys that are read here and there are
// found in half the time then. Where the system has none, nothing happens.
inline void prefer_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t page = std::uintptr_t(1) << 21;
  const auto first = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

// It never shrinks, and is aligned for the widest vectors. It at least doubles when it grows,
// because the rows of a causal mask ask for a little more each time.
template <class T>
class Buffer {
 public:
  T* ensure(Index size) {
    if (data_.size() < size) {
      data_.resize(std::max(size, 2 * data_.size()));
      prefer_huge_pages(data_.data(), static_cast<std::size_t>(data_.size()) * sizeof(T));
    }
    return data_.data();
  }
  T* data() { return data_.data(); }
  const T* data() const { return data_.data(); }

 private:
  Eigen::Array<T, Eigen::Dynamic, 1> data_;
};

}  // namespace headfit
