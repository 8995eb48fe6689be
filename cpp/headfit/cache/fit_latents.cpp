#include "headfit/cache/fit_latents.hpp"

#include "headfit/descent/adam.hpp"
#include "headfit/descent/limits.hpp"
#include "headfit/descent/row_samples.hpp"
#include "headfit/descent/side_by_side.hpp"

namespace headfit {
namespace {

// Tuned on the layers of SmolLM2-135M (30 layers of 3 key heads of 64), 8 passages of 1,024 tokens.
// The largest step, as a share of the size of a map's numbers.
constexpr double largest_rate = 0.03;
// The loss of a start from which steps may be so large; those from a smaller one are as much smaller as
// what is to be mended, but not below a tenth.
constexpr double usual_loss = 0.03;
constexpr Index warm_up = 10;  // steps
constexpr Index look_every = 40;  // steps
constexpr float least_spread = 1e-2f;  // of a number of the keys, as a share of the mean

// Spends what a token may take on bits and steps: of all numbers of groups, and so of steps, the one with
// the least sum of squared errors.
std::vector<int> best_bits(const Vector<double>& variances, const LatentOptions& options) {
  const Index width = variances.size(), group = std::min(options.latents_per_step, width);
  const auto spent = [&](Index latents, Index steps) {
    return spend_bits(variances.head(std::min(latents, width)),
                      options.total_bits - 8 * LatentFormat::bytes_of_step * steps, options.least,
                      options.most);
  };
  std::vector<int> best;
  if (group == 0) best = spent(width, 0);
  double largest_gain = 0;  // what is taken away of the error of no latents at all
  for (Index steps = 1; group > 0 && (steps - 1) * group < width; ++steps) {
    const std::vector<int> bits = spent(steps * group, steps);
    double gain = 0;
    for (std::size_t i = 0; i < bits.size(); ++i) {
      gain += variances[static_cast<Index>(i)] * (1 - normal_error(bits[i]));
    }
    if (gain > largest_gain) {
      largest_gain = gain;
      best = bits;
    }
  }
  if (best.empty()) best = {options.least};  // all tokens are the same
  return best;
}

class LatentDescent {
 public:
  LatentDescent(const KeyLoss& loss, const LayerPassages& layer, const LatentOptions& options)
      : loss_(loss),
        spectrum_(layer.spectrum),
        fitted_(loss.passages() - layer.choosing),
        first_choosing_(layer.choosing > 0 ? fitted_ : 0),
        options_(options),
        samples_(options.seed) {}

  LatentResult run() {
    const Stopwatch stopwatch;
    LatentResult result = principal_result(spectrum_, options_);
    format_ = result.format;
    const auto judge = [&](const LatentMaps& maps) { return validated(maps); };
    const auto to_gradient = [&](const LatentMaps& maps, LatentMaps& gradient) {
      loss_.evaluate(maps, format_, any_rows(), &gradient, work_);
    };
    result.start = judge(result.maps);
    const double near = std::clamp(std::sqrt(result.start / usual_loss), 0.1, 1.0);
    const auto best =
        descent::best_by_adam<LatentMaps>({result.maps, result.start}, units(result.maps),
                                          {options_.steps, largest_rate * near, warm_up,
                                           look_every},
                                          to_gradient, judge);
    result.maps = best.maps;
    result.loss = best.loss;
    result.seconds = stopwatch.seconds();
    return result;
  }

 private:
  // What a step of each number is a share of. Where a number of the keys varies more, its column of
  // `decode` and of the mean takes longer steps and its row of `encode` shorter ones, so that a descent
  // does not depend on the units of the keys.
  LatentMaps units(const LatentMaps& start) const {
    Index passage = 0;  // the first with keys: one may be padding alone
    while (passage + 1 < fitted_ && loss_.keys(passage).rows() == 0) ++passage;
    const Matrix<float> keys = loss_.keys(passage);
    const Matrix<float> about = keys.rowwise() - start.mean.row(0);
    const auto count = static_cast<float>(std::max<Index>(1, about.rows()));
    Eigen::ArrayXf spread = about.colwise().norm().transpose().array() / std::sqrt(count);
    spread = spread.max(least_spread * spread.mean()) + std::numeric_limits<float>::min();
    LatentMaps size = start;
    const Matrix<float> encode = spread.matrix().asDiagonal() * start.encode;
    const Matrix<float> decode = start.decode * spread.inverse().matrix().asDiagonal();
    size.encode.colwise() =
        static_cast<float>(descent::size_of(encode)) * spread.inverse().matrix();
    size.decode.rowwise() =
        static_cast<float>(descent::size_of(decode)) * spread.matrix().transpose();
    size.mean.row(0) = spread.matrix().transpose();
    return size;
  }

  PassageRows any_rows() {
    const Index passage = samples_.below(fitted_);
    return {passage, samples_.random(options_.rows, loss_.rows(passage))};
  }

  double validated(const LatentMaps& maps) {
    double sum = 0;
    for (Index p = first_choosing_; p < loss_.passages(); ++p) {
      checkpoint();
      const std::vector<Index>& rows = samples_.even(options_.validated_rows, loss_.rows(p));
      sum += loss_.evaluate(maps, format_, {p, rows}, nullptr, work_);
    }
    sum = sum < 0 ? 0 : sum;  // by rounding, where nothing is lost; NaN stays
    return sum / static_cast<double>(loss_.passages() - first_choosing_);
  }

  const KeyLoss& loss_;
  const KeySpectrum& spectrum_;
  Index fitted_, first_choosing_;
  const LatentOptions& options_;
  LatentFormat format_;
  descent::RowSamples samples_;
  KeyLoss::Work work_;
};

}  // namespace

LatentResult principal_result(const KeySpectrum& spectrum, const LatentOptions& options) {
  const Index width = spectrum.mean.size();
  if (spectrum.variances.size() != width || spectrum.components.rows() != width ||
      spectrum.components.cols() != width) {
    throw InputError("there must be a principal component for each of ", width, " numbers");
  }
  LatentResult result;
  const bool is_budget = options.bits.empty() && options.rank == 0;
  result.format = LatentFormat(is_budget ? best_bits(spectrum.variances, options) : options.bits,
                               options.latents_per_step);
  const bool rounds = result.format.rounds();
  const Index rank = rounds ? static_cast<Index>(result.format.bits().size()) : options.rank;
  if (rank > width) {
    throw InputError("there must not be more latents than the ", width, " numbers of a token; got ",
                     rank);
  }
  result.maps = principal_latents(spectrum, rank, result.format, options.seed);
  return result;
}

LatentResult fit_latents(const LayerPassages& layer, const LatentOptions& options, const Run& run) {
  const KeyLoss loss(layer.passages, layer.positions, run);
  if (layer.choosing < 0 || layer.choosing >= loss.passages()) {
    throw InputError("there must be a passage to fit to");
  }
  if (layer.spectrum.mean.size() != loss.width()) {
    throw InputError("the principal components must be those of keys of ", loss.width(),
                     " numbers");
  }
  return LatentDescent(loss, layer, options).run();
}

std::vector<LatentResult> fit_layers(std::span<const LayerPassages> layers,
                                     std::span<const LatentOptions> options,
                                     const std::function<void(Index, const LatentResult&)>& done,
                                     const Run& run) {
  if (layers.size() != options.size()) throw InputError("there must be options for each layer");
  return descent::side_by_side(layers.size(), done, run, [&](std::size_t at) {
    return fit_latents(layers[at], options[at], Run{1, {}});
  });
}

}  // namespace headfit
