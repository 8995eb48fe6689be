// Where the descent of latents starts: the principal components of a layer's keys, each with the bits
// that its variance is worth, and mixed at random with those of as many bits.
#pragma once

#include "headfit/cache/key_loss.hpp"

namespace headfit {

// The mean of the keys of a layer, before positions, and their principal components.
struct KeySpectrum {
  Vector<double> mean;
  Vector<double> variances;  // falling
  Matrix<double> components;  // in columns
};

// Spends bits on latents of falling variance, one after the other where it lowers the sum of squared
// errors most. The numbers are falling, and the number of latents is how many get any. A latent takes
// `least` bits or none, and at most `most`.
std::vector<int> spend_bits(const Vector<double>& variances, Index bits, int least, int most);

// The first principal components as latents, turned at random among those of as many bits and scaled
// so that one step suits all of them; to a spread of about 1 where they are not rounded.
LatentMaps principal_latents(const KeySpectrum& spectrum, Index rank, const LatentFormat& format,
                             std::uint64_t seed);

}  // namespace headfit
