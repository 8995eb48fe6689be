// Maps of keys to latents and back that change attention least: descended, with the rounding of what
// is stored inside, by the divergence of a few rows at a time.
#pragma once

#include "headfit/cache/principal_latents.hpp"

namespace headfit {

// The keys of a layer, and the queries that read them, in some passages with rotary positions applied.
struct LayerPassages {
  std::vector<LogitSource<float>> passages;
  Rotary<float>
      positions;  // of the keys of every passage, which maps act before; may have no table
  KeySpectrum spectrum;  // of the keys of the passages that are fitted
  // So many of the last passages are not fitted: they choose among the steps of the descent. Where
  // that is 0 all passages do both.
  Index choosing = 0;
};

struct LatentOptions {
  // The bits of each latent, not rising. Where there are none: `rank` latents that are not rounded; and
  // with a rank of 0, as many as `total_bits`, the steps of a token among them, are best spent on, each
  // from `least` to `most`.
  std::vector<int> bits = {};
  Index rank = 0;
  Index total_bits = 0;
  int least = 2, most = 8;
  Index latents_per_step = LatentFormat::whole_token;
  Index steps = 320;
  Index rows = 96;  // of one passage in every step
  Index validated_rows = 64;  // of each passage that chooses
  std::uint64_t seed = 0;
};

struct LatentResult {
  LatentFormat format;
  LatentMaps maps;  // of the steps looked at, those with the least loss on the passages that choose
  double start = 0, loss = 0;  // on these passages: of the principal components, and of the maps
  double seconds = 0;
};

// The principal components alone, in the format that the options say; for values of tokens too.
// Throws InputError for more latents than numbers.
LatentResult principal_result(const KeySpectrum& spectrum, const LatentOptions& options);

// Descends from principal components by Adam (Kingma and Ba 2015), whose steps are in units of the
// size of each map.
LatentResult fit_latents(const LayerPassages& layer, const LatentOptions& options, const Run& run);

// The same for several layers, side by side on the threads of the run. `done` is called after each one
// with its number, from any thread, one at a time.
std::vector<LatentResult> fit_layers(std::span<const LayerPassages> layers,
                                     std::span<const LatentOptions> options,
                                     const std::function<void(Index, const LatentResult&)>& done,
                                     const Run& run);

}  // namespace headfit
