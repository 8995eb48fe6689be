// How the latent of a token is stored: whole numbers of a few bits each, times a step.
#pragma once

#include <array>
#include <limits>
#include <type_traits>
#include <vector>

#include "headfit/base/types.hpp"

namespace headfit {

// The step of least mean squared error for normal numbers of variance 1, which take so many bits each,
// and that error (Max 1960, table II, and the same equation beyond). With 0 bits they become 0.
double normal_step(int bits);
double normal_error(int bits);

// Latent i is one of the 2^bits[i] odd multiples of half a step that are nearest to zero. The step is 1,
// so that maps say what it is for each latent; or a token has steps of its own, float16 numbers: one for
// all of its latents, or one for each group of them.
class LatentFormat {
 public:
  static constexpr int most_bits = 8;
  static constexpr Index bytes_of_step = sizeof(Eigen::half);
  // The steps that are tried, as shares of the usual one.
  static constexpr std::array<float, 8> shares{0.7f, 0.8f, 0.9f, 1.0f, 1.1f, 1.22f, 1.35f, 1.5f};

  static constexpr Index whole_token = std::numeric_limits<Index>::max();

  // From 1 to 8 bits for each latent. None at all: latents are stored as they are. A token has a step for
  // every `latents_per_step` latents that follow each other; where that is 0 it has no steps.
  explicit LatentFormat(std::vector<int> bits = {}, Index latents_per_step = whole_token);

  bool rounds() const { return !bits_.empty(); }
  Index latents_per_step() const { return latents_per_step_; }
  // Whether what is stored of a token has steps, and in how many bytes.
  bool has_steps() const { return rounds() && latents_per_step_ > 0; }
  Index step_bytes() const;
  const std::vector<int>& bits() const { return bits_; }

  // Throws InputError unless this is a format of so many latents.
  void check(Index rank) const;
  // Rounds each row, and writes its steps, a column for each group. Those of a token are the ones of a few
  // with the least sum of squared errors, where those of latent i count weights[i] times.
  void round(Matrix<float>& latents, const Vector<float>& weights, Matrix<float>& steps) const;
  // The bytes of a token. They have the bits of its latents, first the lowest bit of each, then the next
  // one of those that have more than one, and so on, and after them its own steps in float16; or latents
  // that are not rounded, in float16.
  Index token_bytes(Index rank) const;
  // Writes the bytes of the rounded latents of one token, and reads them.
  void pack(std::span<const float> latent, std::span<const float> steps, std::uint8_t* token) const;
  void unpack(const std::uint8_t* token, std::span<float> latent) const;
  // Turns a gradient by rounded latents into one by the latents before they were rounded, in place.
  // Rounding to a multiple is taken for a shift, unless it cuts off what is too large; the step of a token
  // changes with its latents.
  void to_gradient_before(const Matrix<float>& before, const Matrix<float>& rounded,
                          const Matrix<float>& steps, Matrix<float>& gradient) const;

 private:
  // Latents that share a step.
  struct Group {
    Index first, count;
    float mean_square;  // of latents whose usual step is 1
    // The same latents of a token.
    auto of(auto* latent) const {
      using Row = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(latent)>>,
                                     const Eigen::ArrayXf, Eigen::ArrayXf>;
      return Eigen::Map<Row>(latent + first, count);
    }
    // The step at which they, if they are normal numbers, lose least.
    float usual_step(const float* latent) const;
  };

  // The bytes of the bits of a token, without its steps.
  Index code_bytes() const;

  std::vector<int> bits_;
  Index latents_per_step_;
  std::vector<Group> groups_;  // a single one where tokens have no steps
  Vector<float> reach_;  // the largest multiple of a step
  std::vector<Index> planes_;  // how many latents, which are the first, have a bit 0, a bit 1, ...
};

}  // namespace headfit
