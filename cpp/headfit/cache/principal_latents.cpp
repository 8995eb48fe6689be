#include "headfit/cache/principal_latents.hpp"

#include <cmath>
#include <queue>
#include <random>

#include "headfit/base/checkpoint.hpp"
#include "headfit/base/linear_algebra.hpp"

namespace headfit {
namespace {

// By Gram-Schmidt, twice for the rounding of the first time.
Eigen::MatrixXd random_rotation(Index size, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  Eigen::MatrixXd x(size, size);
  Checkpoints checkpoints;
  for (Index i = 0; i < size; ++i) {
    checkpoints.after(4 * size * i);
    for (double& entry : x.col(i)) entry = normal(random);
    for (int time = 0; time < 2; ++time) {
      for (Index j = 0; j < i; ++j) x.col(i) -= x.col(j).dot(x.col(i)) * x.col(j);
      x.col(i).normalize();
    }
  }
  return x;
}

}  // namespace

std::vector<int> spend_bits(const Vector<double>& variances, Index bits, int least, int most) {
  struct Offer {
    double gain;  // per bit
    Index latent;
    int to;
    bool operator<(const Offer& other) const {
      return gain != other.gain ? gain < other.gain : latent > other.latent;
    }
  };
  // Components below this share of the first one are rounding errors where tokens are few or numbers
  // repeat: bits for them would need maps so large that other tokens are read as noise.
  constexpr double rounding = 1e-10;
  std::vector<int> spent(static_cast<std::size_t>(variances.size()), 0);
  std::priority_queue<Offer> offers;
  const auto offer = [&](Index i, int from, int to) {
    if (to > most || !(variances[i] > rounding * variances[0])) return;
    const double gain = variances[i] * (normal_error(from) - normal_error(to));
    offers.push({gain / (to - from), i, to});
  };
  for (Index i = 0; i < variances.size(); ++i) offer(i, 0, least);
  while (!offers.empty()) {
    const Offer best = offers.top();
    offers.pop();
    int& now = spent[static_cast<std::size_t>(best.latent)];
    if (best.to - now > bits) continue;
    bits -= best.to - now;
    now = best.to;
    offer(best.latent, now, now + 1);
  }
  std::erase(spent, 0);
  std::ranges::sort(spent, std::greater());
  return spent;
}

LatentMaps principal_latents(const KeySpectrum& spectrum, Index rank, const LatentFormat& format,
                             std::uint64_t seed) {
  std::mt19937_64 random(seed);
  LatentMaps maps = LatentMaps::zero(spectrum.mean.size(), rank);
  maps.mean.row(0) = spectrum.mean.transpose().cast<float>();
  const auto bits_of = [&](Index i) {
    return format.rounds() ? format.bits()[static_cast<std::size_t>(i)] : 0;
  };
  Matrix<double> turned;
  for (Index first = 0, end = 0; first < rank; first = end) {
    while (end < rank && bits_of(end) == bits_of(first)) ++end;
    const Index count = end - first;
    const Matrix<double> rotation = random_rotation(count, random);
    turned.setZero(spectrum.components.rows(), count);
    // In parts of a second at most, so that Ctrl-C is heard.
    const Index at_once = std::max<Index>(64, Index(4e9) / (count * count));
    for (Index row = 0; row < turned.rows(); row += at_once) {
      const Index rows = std::min(at_once, turned.rows() - row);
      checkpoint();
      add_product<double>(spectrum.components.block(row, first, rows, count), rotation,
                          turned.middleRows(row, rows));
    }
    // Latents that are not rounded stay within the range of float16. A smaller step would make maps
    // that float32 does not hold.
    constexpr double least_step = 1e-30;
    const double spread = std::sqrt(spectrum.variances.segment(first, count).mean());
    double step = format.rounds() ? normal_step(bits_of(first)) * spread : spread;
    const bool varies = step > least_step;
    if (!varies) step = 1;
    maps.encode.middleCols(first, count) = (turned / step).cast<float>();
    // Latents that do not vary would be read as half a step, which is not 0 where tokens have none.
    if (!varies && format.rounds() && !format.has_steps()) continue;
    maps.decode.middleRows(first, count) = (turned.transpose() * step).cast<float>();
  }
  return maps;
}

}  // namespace headfit
