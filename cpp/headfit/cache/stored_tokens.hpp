// Keys or values of tokens as the bytes that a cache holds of them, and back.
#pragma once

#include "headfit/base/threads.hpp"
#include "headfit/cache/key_loss.hpp"
#include "headfit/cache/latents.hpp"

namespace headfit {

// How the keys, or values, of all heads of a layer are stored.
struct TokenStore {
  LatentFormat format;
  LatentMaps maps;
  Index heads = 1;

  Index rank() const { return maps.decode.rows(); }
  Index width() const { return maps.decode.cols(); }
  Index size() const { return width() / heads; }  // of a head
  Index token_bytes() const { return format.token_bytes(rank()); }
  // Throws InputError for maps, bits and heads that do not belong together.
  void check() const;
};

// The tokens of the entries of a batch, which follow each other. `numbers` has rows of store.size()
// for each entry, head and token, in this order, and `positions`, if it has a table, a row for each
// token of the batch, to which keys are turned.
struct TokenBatch {
  Index entries = 0, tokens = 0;
  Rotary<float> positions;
};

// Writes the bytes of tokens, store.token_bytes() each. Throws NonFiniteError for what is not finite where
// bits alone are stored, which do not hold it; else it is read as NaN.
void store_tokens(const TokenStore& store, const TokenBatch& batch, const float* numbers,
                  std::uint8_t* bytes, const Run& run);

// Writes the numbers that are read from them.
void read_tokens(const TokenStore& store, const TokenBatch& batch, const std::uint8_t* bytes,
                 float* numbers, const Run& run);

}  // namespace headfit
