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

constexpr Index half_bytes = sizeof(Eigen::half);

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

LatentFormat::LatentFormat(std::vector<int> bits, bool token_steps)
    : bits_(std::move(bits)), token_steps_(token_steps) {
  if (!std::is_sorted(bits_.rbegin(), bits_.rend())) throw InputError("bits must not rise");
  reach_.resize(static_cast<Index>(bits_.size()));
  double sum = 0;
  for (std::size_t i = 0; i < bits_.size(); ++i) {
    if (bits_[i] < 1 || bits_[i] > most_bits) {
      throw InputError("bits must lie in 1 ... 8; got ", bits_[i]);
    }
    reach_[static_cast<Index>(i)] = 0.5f * static_cast<float>((1 << bits_[i]) - 1);
    sum += std::pow(normal_step(bits_[i]), -2.0);
    planes_.resize(std::max(planes_.size(), static_cast<std::size_t>(bits_[i])));
    for (int bit = 0; bit < bits_[i]; ++bit) ++planes_[static_cast<std::size_t>(bit)];
  }
  if (rounds()) mean_square_ = static_cast<float>(sum / static_cast<double>(bits_.size()));
}

void LatentFormat::check(Index rank) const {
  if (!rounds() || static_cast<Index>(bits_.size()) == rank) return;
  throw InputError("bits must be one number for each of the ", rank, " latents; got ",
                   bits_.size());
}

float LatentFormat::usual_step(const float* latent) const {
  const Eigen::Map<const Vector<float>> z(latent, reach_.size());
  return std::sqrt(z.squaredNorm() / (mean_square_ * static_cast<float>(z.size())));
}

void LatentFormat::round(Matrix<float>& latents, const Vector<float>& weights,
                         Vector<float>& steps) const {
  steps.setOnes(latents.rows());
  if (!rounds()) return;
  const auto rounded = [&](const auto& z, float step) {
    return (((z * (1 / step) - 0.5f).round() + 0.5f).min(reach_.array()).max(-reach_.array()) *
            step)
        .eval();
  };
  for (Index j = 0; j < latents.rows(); ++j) {
    Eigen::Map<Eigen::ArrayXf> z(latents.row(j).data(), latents.cols());
    if (!token_steps_) {
      z = rounded(z, 1);
      continue;
    }
    const float usual = usual_step(z.data());
    float least = std::numeric_limits<float>::infinity();
    // Numbers whose squares overflow are cut off; a token that is not finite is read as NaN.
    steps[j] =
        z.isFinite().all() ? as_stored(shares[0] * usual) : std::numeric_limits<float>::quiet_NaN();
    for (const float share : shares) {
      const float step = as_stored(share * usual);
      const float error = ((rounded(z, step) - z).square() * weights.array()).sum();
      if (!(error < least)) continue;
      least = error;
      steps[j] = step;
    }
    z = rounded(z, steps[j]);
  }
}

Index LatentFormat::code_bytes() const {
  return (std::reduce(planes_.begin(), planes_.end()) + 7) / 8;
}

Index LatentFormat::token_bytes(Index rank) const {
  if (!rounds()) return rank * half_bytes;
  return code_bytes() + (token_steps_ ? half_bytes : 0);
}

void LatentFormat::pack(std::span<const float> latent, float step, std::uint8_t* token) const {
  if (!rounds()) {
    for (const float z : latent) {
      store_half(z, token);
      token += half_bytes;
    }
    return;
  }
  std::fill_n(token, code_bytes(), std::uint8_t(0));
  for (std::size_t i = 0; i < latent.size(); ++i) {
    const long code = std::lround(latent[i] / step + reach_[static_cast<Index>(i)]);
    auto at = static_cast<Index>(i);
    for (int bit = 0; bit < bits_[i]; at += planes_[static_cast<std::size_t>(bit++)]) {
      token[at / 8] = static_cast<std::uint8_t>(token[at / 8] | (code >> bit & 1) << (at % 8));
    }
  }
  if (token_steps_) store_half(step, token + code_bytes());
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
  if (!token_steps_) return;
  const float step = half_at(token + (at + 7) / 8);
  for (float& z : latent) z *= step;
}

void LatentFormat::to_gradient_before(const Matrix<float>& before, const Matrix<float>& rounded,
                                      const Vector<float>& steps, Matrix<float>& gradient) const {
  if (!rounds()) return;
  for (Index j = 0; j < before.rows(); ++j) {
    const Eigen::Map<const Eigen::ArrayXf> z(before.row(j).data(), before.cols());
    const Eigen::Map<const Eigen::ArrayXf> q(rounded.row(j).data(), before.cols());
    Eigen::Map<Eigen::ArrayXf> g(gradient.row(j).data(), before.cols());
    const float step = steps[j], square = z.square().sum();
    const auto within = (z.abs() <= (reach_.array() + 0.5f) * step).template cast<float>();
    // A rounded latent changes with the step as its multiple does, less what a shift takes back. The
    // step of a token is a constant times the root of the sum of squares.
    const float by_step = (g * (q - within * z)).sum() / step;
    const float by_square = token_steps_ && square > 0 ? by_step * step / square : 0.0f;
    g = g * within + by_square * z;
  }
}

}  // namespace headfit
