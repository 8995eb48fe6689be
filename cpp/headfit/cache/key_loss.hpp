// How far attention changes when the keys of a layer are stored as latents: the divergence of all
// query heads from their own attention, and its gradient by the maps.
//
// All key heads of a layer are one row x of a token, before rotary positions. The latent of a token
// is z = (x - mean) encode, rounded; what is read from it is z decode + mean, and then turned to the
// token's position.
#pragma once

#include <memory>

#include "headfit/cache/latents.hpp"
#include "headfit/compress/folds.hpp"

namespace headfit {

// Maps of the keys of a layer, or what belongs to each of their numbers: a gradient, say.
struct LatentMaps {
  Matrix<float> encode;  // (width, rank), where width is the size of all key heads together
  Matrix<float> decode;  // (rank, width)
  Matrix<float> mean;  // (1, width)

  static LatentMaps zero(Index width, Index rank);
  // Calls work(matrix, matrix of each other ...) for the three.
  template <class Work, class... Others>
  void for_each(const Work& work, Others&... others) {
    work(encode, others.encode...);
    work(decode, others.decode...);
    work(mean, others.mean...);
  }
};

// Some rows of one passage.
struct PassageRows {
  Index passage;
  std::span<const Index> rows;
};

// The attention of one layer in some passages, whose queries and keys stay the caller's. A copy of
// the keys is kept, turned back from their positions.
class KeyLoss {
 public:
  // Passages store float32 with rotary positions applied. `positions` are those of the keys of every
  // passage, from its first key on; without a table maps act on keys as they are.
  KeyLoss(std::span<const LogitSource<float>> passages, const Rotary<float>& positions,
          const Run& run);

  Index passages() const { return static_cast<Index>(passages_.size()); }
  Index rows(Index passage) const { return at(passage).queries.q.rows; }
  Index width() const { return at(0).keys.cols(); }
  // The keys of a passage before their positions, a row for each token that is no padding.
  Matrix<float> keys(Index passage) const {
    return without_padding(at(passage).queries, at(passage).keys);
  }

  // What evaluations keep from one to the next. Each thread has one of its own.
  struct Work {
    compress::UnitWork<float> unit;
    Matrix<float> latents, stored, steps, read, by_read, by_latents;
  };

  // The mean over query heads and rows of the divergence KL(original || with latents), in nats; rows
  // that attend to nothing count as 0. Adds the gradient of that mean by the maps where
  // `gradient` is not null, for which LatentFormat says what rounding does.
  double evaluate(const LatentMaps& maps, const LatentFormat& format, const PassageRows& rows,
                  LatentMaps* gradient, Work& work) const;

 private:
  struct Passage {
    LogitSource<float> queries;  // with the original keys
    Matrix<float> keys;  // before positions
    compress::Targets<float> targets;  // of each query head
  };

  const Passage& at(Index passage) const { return passages_[static_cast<std::size_t>(passage)]; }
  // Adds up the divergence of the query heads; writes its gradient by the keys that are read.
  double diverge(const Passage& passage, std::span<const Index> rows, bool with_gradient,
                 Work& work) const;

  std::vector<Passage> passages_;
  Rotary<float> positions_;
};

}  // namespace headfit
