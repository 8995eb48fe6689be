// A counter-based random number generator: every entry of the stream can be computed on its own, in
// any order and on any thread. It is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

#include "headfit/simd/wide_words.hpp"

namespace headfit {

using RandomBlock = std::array<std::uint32_t, 4>;

class Philox {
 public:
  explicit Philox(std::uint64_t seed)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)} {}

  // The four random words at place (major, minor) of the stream.
  RandomBlock operator()(std::uint64_t major, std::uint64_t minor) const {
    RandomBlock x{static_cast<std::uint32_t>(minor), static_cast<std::uint32_t>(minor >> 32),
                  static_cast<std::uint32_t>(major), static_cast<std::uint32_t>(major >> 32)};
    std::uint32_t k0 = key_[0];
    std::uint32_t k1 = key_[1];
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t p0 = static_cast<std::uint64_t>(factor0) * x[0];
      const std::uint64_t p1 = static_cast<std::uint64_t>(factor1) * x[2];
      x = {static_cast<std::uint32_t>(p1 >> 32) ^ x[1] ^ k0, static_cast<std::uint32_t>(p1),
           static_cast<std::uint32_t>(p0 >> 32) ^ x[3] ^ k1, static_cast<std::uint32_t>(p0)};
      k0 += step0;
      k1 += step1;
    }
    return x;
  }

  // The words at places (major, first) ... (major, first + count - 1): word w of block b goes to
  // words[w][b]. Several vectors of blocks go through the same rounds at a time.
  template <int count>
  void blocks(std::uint64_t major, std::uint64_t first, std::uint32_t (&words)[4][count]) const {
    static_assert(count % group == 0);
    auto& [x0, x1, x2, x3] = words;
    for (int b = 0; b < count; ++b) {
      const std::uint64_t minor = first + static_cast<std::uint64_t>(b);
      x0[b] = static_cast<std::uint32_t>(minor);
      x1[b] = static_cast<std::uint32_t>(minor >> 32);
      x2[b] = static_cast<std::uint32_t>(major);
      x3[b] = static_cast<std::uint32_t>(major >> 32);
    }
    for (int b = 0; b < count; b += group) mix(x0 + b, x1 + b, x2 + b, x3 + b);
  }

 private:
  static constexpr int rounds = 10;
  static constexpr int vectors = 4;  // enough that their chains of dependent products overlap
  static constexpr int group = vectors * Words::lanes;
  static constexpr std::uint32_t factor0 = 0xD2511F53u, factor1 = 0xCD9E8D57u;
  static constexpr std::uint32_t step0 = 0x9E3779B9u, step1 = 0xBB67AE85u;

  void mix(std::uint32_t* w0, std::uint32_t* w1, std::uint32_t* w2, std::uint32_t* w3) const {
    Words x0[vectors], x1[vectors], x2[vectors], x3[vectors];
    for (int i = 0; i < vectors; ++i) {
      x0[i] = Words::load(w0 + i * Words::lanes);
      x1[i] = Words::load(w1 + i * Words::lanes);
      x2[i] = Words::load(w2 + i * Words::lanes);
      x3[i] = Words::load(w3 + i * Words::lanes);
    }
    const Words f0 = Words::all(factor0), f1 = Words::all(factor1);
    std::uint32_t k0 = key_[0];
    std::uint32_t k1 = key_[1];
    for (int round = 0; round < rounds; ++round) {
      const Words all_k0 = Words::all(k0), all_k1 = Words::all(k1);
      for (int i = 0; i < vectors; ++i) {
        const WideProduct p0(x0[i], f0), p1(x2[i], f1);
        x0[i] = p1.high ^ x1[i] ^ all_k0;
        x1[i] = p1.low;
        x2[i] = p0.high ^ x3[i] ^ all_k1;
        x3[i] = p0.low;
      }
      k0 += step0;
      k1 += step1;
    }
    for (int i = 0; i < vectors; ++i) {
      x0[i].store(w0 + i * Words::lanes);
      x1[i].store(w1 + i * Words::lanes);
      x2[i].store(w2 + i * Words::lanes);
      x3[i].store(w3 + i * Words::lanes);
    }
  }

  std::array<std::uint32_t, 2> key_;
};

// Reads the words at places (major, 0), (major, 1), ... one after the other, for shuffles and for
// rejection sampling.
class PhiloxReader {
 public:
  PhiloxReader(std::uint64_t seed, std::uint64_t major) : philox_(seed), major_(major) {}

  std::uint32_t next() {
    if (used_ == 4) {
      block_ = philox_(major_, minor_++);
      used_ = 0;
    }
    return block_[used_++];
  }

  // A number uniform on 0 ... bound-1, without bias (Lemire's method).
  std::uint32_t below(std::uint32_t bound) {
    std::uint64_t product = static_cast<std::uint64_t>(next()) * bound;
    if (static_cast<std::uint32_t>(product) < bound) {
      const std::uint32_t threshold = (0u - bound) % bound;
      while (static_cast<std::uint32_t>(product) < threshold) {
        product = static_cast<std::uint64_t>(next()) * bound;
      }
    }
    return static_cast<std::uint32_t>(product >> 32);
  }

 private:
  Philox philox_;
  std::uint64_t major_;
  std::uint64_t minor_ = 0;
  RandomBlock block_{};
  unsigned used_ = 4;
};

}  // namespace headfit
