#include "headfit/cache/latents.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "headfit/base/errors.hpp"
#include "headfit/base/number_format.hpp"

namespace headfit {
namespace {

constexpr auto largest_half = static_cast<float>(NumberFormat::float16().largest);

// The nearest positive number of float16, in which steps are stored.
float as_stored(float step) {
  constexpr float least = 5.9604645e-8f;
  return static_cast<float>(Eigen::half(std::clamp(step, least, largest_half)));
}

constexpr Index half_bytes = LatentFormat::bytes_of_step;  // of a number in float16

// Stores the nearest finite number of float16, and NaN for a number that is not finite.
void store_half(float x, std::uint8_t* bytes) {
  const float nearest = std::clamp(x, -largest_half, largest_half);
  const Eigen::half rounded(std::isfinite(x) ? nearest : std::numeric_limits<float>::quiet_NaN());
  std::memcpy(bytes, &rounded, sizeof(rounded));
}

// The number of float16 at any address.
float half_at(const std::uint8_t* bytes) {
  Eigen::half x;
  std::memcpy(&x, bytes, sizeof(x));
  return static_cast<float>(x);
}

}  // namespace

double normal_step(int bits) {
  constexpr double steps[] = {0, 1.5958, 0.9957, 0.5860, 0.3352, 0.1881, 0.1041, 0.0569, 0.0308};
  return steps[bits];
}

double normal_error(int bits) {
  constexpr double errors[] = {1,       0.3634,  0.1188,   0.03744, 0.01154,
                               0.00349, 0.00104, 0.000304, 0.000088};
  return errors[bits];
}

LatentFormat::LatentFormat(std::vector<int> bits, Index latents_per_step)
    : bits_(std::move(bits)), latents_per_step_(latents_per_step) {
  if (!std::is_sorted(bits_.rbegin(), bits_.rend())) throw InputError("bits must not rise");
  if (latents_per_step < 0) throw InputError("latents of a step must be none or some");
  const auto rank = static_cast<Index>(bits_.size());
  reach_.resize(rank);
  for (std::size_t i = 0; i < bits_.size(); ++i) {
    if (bits_[i] < 1 || bits_[i] > most_bits) {
      throw InputError("bits must lie in 1 ... 8; got ", bits_[i]);
    }
    reach_[static_cast<Index>(i)] = 0.5f * static_cast<float>((1 << bits_[i]) - 1);
    planes_.resize(std::max(planes_.size(), static_cast<std::size_t>(bits_[i])));
    for (int bit = 0; bit < bits_[i]; ++bit) ++planes_[static_cast<std::size_t>(bit)];
  }
  for (Index first = 0; first < rank; first += groups_.back().count) {
    const Index count = std::min(has_steps() ? latents_per_step : rank, rank - first);
    double sum = 0;
    for (Index i = first; i < first + count; ++i) {
      sum += std::pow(normal_step(bits_[static_cast<std::size_t>(i)]), -2.0);
    }
    groups_.push_back({first, count, static_cast<float>(sum / static_cast<double>(count))});
  }
}

void LatentFormat::check(Index rank) const {
  if (!rounds() || static_cast<Index>(bits_.size()) == rank) return;
  throw InputError("bits must be one number for each of the ", rank, " latents; got ",
                   bits_.size());
}

float LatentFormat::Group::usual_step(const float* latent) const {
  return std::sqrt(of(latent).matrix().squaredNorm() / (mean_square * static_cast<float>(count)));
}

void LatentFormat::round(Matrix<float>& latents, const Vector<float>& weights,
                         Matrix<float>& steps) const {
  steps.setOnes(latents.rows(), static_cast<Index>(groups_.size()));
  for (Index at = 0; at < steps.size(); ++at) {
    float* const token = latents.row(at / steps.cols()).data();
    float& taken = steps.data()[at];
    const Group& group = groups_[static_cast<std::size_t>(at % steps.cols())];
    auto z = group.of(token);
    const auto reach = group.of(reach_.data()), weight = group.of(weights.data());
    // An expression, which is computed where it is used.
    const auto rounded = [&](float step) {
      return ((z * (1 / step) - 0.5f).round() + 0.5f).min(reach).max(-reach) * step;
    };
    if (has_steps()) {
      const float usual = group.usual_step(token);
      float least = std::numeric_limits<float>::infinity();
      // Numbers whose squares overflow are cut off; a token that is not finite is read as NaN.
      taken = z.isFinite().all() ? as_stored(shares[0] * usual)
                                 : std::numeric_limits<float>::quiet_NaN();
      for (const float share : shares) {
        const float step = as_stored(share * usual);
        const float error = ((rounded(step) - z).square() * weight).sum();
        if (!(error < least)) continue;
        least = error;
        taken = step;
      }
    }
    z = rounded(taken);
  }
}

Index LatentFormat::code_bytes() const {
  return (std::reduce(planes_.begin(), planes_.end()) + 7) / 8;
}

Index LatentFormat::step_bytes() const {
  return has_steps() ? static_cast<Index>(groups_.size()) * bytes_of_step : 0;
}

Index LatentFormat::token_bytes(Index rank) const {
  return rounds() ? code_bytes() + step_bytes() : rank * half_bytes;
}

void LatentFormat::pack(std::span<const float> latent, std::span<const float> steps,
                        std::uint8_t* token) const {
  if (!rounds()) {
    for (const float z : latent) {
      store_half(z, token);
      token += half_bytes;
    }
    return;
  }
  std::fill_n(token, code_bytes(), std::uint8_t(0));
  std::uint8_t* stored_step = token + code_bytes();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (Index i = groups_[g].first; i < groups_[g].first + groups_[g].count; ++i) {
      const auto place = static_cast<std::size_t>(i);
      const long code = std::lround(latent[place] / steps[g] + reach_[i]);
      Index at = i;
      for (int bit = 0; bit < bits_[place]; at += planes_[static_cast<std::size_t>(bit++)]) {
        token[at / 8] = static_cast<std::uint8_t>(token[at / 8] | (code >> bit & 1) << (at % 8));
      }
    }
    if (has_steps()) store_half(steps[g], stored_step);
    stored_step += half_bytes;
  }
}

void LatentFormat::unpack(const std::uint8_t* token, std::span<float> latent) const {
  if (!rounds()) {
    for (float& z : latent) {
      z = half_at(token);
      token += half_bytes;
    }
    return;
  }
  // Codes are counted from the lowest of the 2^bits odd multiples of half a step.
  Index at = 0;
  for (std::size_t i = 0; i < latent.size(); ++i) latent[i] = -reach_[static_cast<Index>(i)];
  float worth = 1;
  for (const Index count : planes_) {
    for (Index i = 0; i < count; i += 8) {
      const Index some = std::min<Index>(8, count - i);
      const int next = at % 8 + some > 8 ? token[at / 8 + 1] : 0;
      const int eight = (token[at / 8] | next << 8) >> (at % 8);
      float* z = latent.data() + i;
      const auto add = [&](Index bit) { z[bit] += worth * static_cast<float>(eight >> bit & 1); };
      if (some == 8) {  // a constant, for the compiler
        for (Index bit = 0; bit < 8; ++bit) add(bit);
      } else {
        for (Index bit = 0; bit < some; ++bit) add(bit);
      }
      at += some;
    }
    worth *= 2;
  }
  if (!has_steps()) return;
  const std::uint8_t* step = token + (at + 7) / 8;
  for (const Group& group : groups_) {
    group.of(latent.data()) *= half_at(step);
    step += half_bytes;
  }
}

void LatentFormat::to_gradient_before(const Matrix<float>& before, const Matrix<float>& rounded,
                                      const Matrix<float>& steps, Matrix<float>& gradient) const {
  for (Index at = 0; at < steps.size(); ++at) {
    const Index j = at / steps.cols();
    const Group& group = groups_[static_cast<std::size_t>(at % steps.cols())];
    const auto z = group.of(before.row(j).data()), q = group.of(rounded.row(j).data());
    auto g = group.of(gradient.row(j).data());
    const float step = steps.data()[at], square = z.square().sum();
    const auto within = (z.abs() <= (group.of(reach_.data()) + 0.5f) * step).template cast<float>();
    // A rounded latent changes with the step as its multiple does, less what a shift takes back. A
    // step of a token is a constant times the root of the sum of squares.
    const float by_step = (g * (q - within * z)).sum() / step;
    const float by_square = has_steps() && square > 0 ? by_step * step / square : 0.0f;
    g = g * within + by_square * z;
  }
}

}  // namespace headfit
