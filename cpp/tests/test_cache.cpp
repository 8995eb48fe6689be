// Keys as latents: rounding, the loss and its gradient against their definitions, the start and the
// descent.
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <numeric>

#include "check.hpp"
#include "headfit/cache/fit_latents.hpp"
#include "headfit/cache/principal_latents.hpp"
#include "headfit/cache/stored_tokens.hpp"
#include "problem.hpp"

using namespace headfit;
using namespace headfit::test;

namespace {

constexpr Index heads = 4, group = 2, dim = 4, width = 8;

Matrix<float> random(Index rows, Index cols, std::uint64_t seed, double size = 1) {
  Numbers numbers(seed);
  Matrix<float> x(rows, cols);
  for (float& entry : x.reshaped()) entry = static_cast<float>(size * numbers.next());
  return x;
}

// Cosines and sines of positions 0 ... count - 1.
Matrix<float> table(Index count) {
  Matrix<float> x(count, dim);
  for (Index i = 0; i < count; ++i) {
    for (Index p = 0; p < dim / 2; ++p) {
      const double angle = static_cast<double>(i) * std::pow(0.1, static_cast<double>(p));
      x(i, p) = static_cast<float>(std::cos(angle));
      x(i, dim / 2 + p) = static_cast<float>(std::sin(angle));
    }
  }
  return x;
}

std::vector<Problem<float>> passages() {
  Numbers numbers(1);
  std::vector<Problem<float>> found;
  for (const Index n : {30, 50, 41}) {
    found.emplace_back(heads, group, n, n, dim, numbers);
    found.back().mask.right = 0;
  }
  found[1].softcap = found[0].softcap = found[2].softcap = 3;
  found[2].sinks = found[1].sinks = found[0].sinks = {0.5, -1, 0, 2};
  return found;
}

std::vector<LogitSource<float>> sources(const std::vector<Problem<float>>& problems) {
  std::vector<LogitSource<float>> found;
  for (const Problem<float>& p : problems) found.push_back(p.source());
  return found;
}

LatentMaps random_maps(Index rank) {
  return {random(width, rank, 5), random(rank, width, 6), random(1, width, 7, 0.3)};
}

// The keys of a passage before their positions, by their definition: entries p and p + dim / 2 are
// the real and imaginary part of a number that is turned back.
Matrix<double> turned(const Matrix<double>& keys, double sign) {
  Matrix<double> out = keys;
  for (Index j = 0; j < keys.rows(); ++j) {
    for (Index g = 0; g < heads / group; ++g) {
      for (Index p = 0; p < dim / 2; ++p) {
        const double angle = sign * static_cast<double>(j) * std::pow(0.1, static_cast<double>(p));
        const double a = keys(j, g * dim + p), b = keys(j, g * dim + dim / 2 + p);
        out(j, g * dim + p) = a * std::cos(angle) - b * std::sin(angle);
        out(j, g * dim + dim / 2 + p) = a * std::sin(angle) + b * std::cos(angle);
      }
    }
  }
  return out;
}

Matrix<double> keys_of(const Problem<float>& p) {
  Matrix<double> keys(p.m, width);
  for (Index j = 0; j < p.m; ++j) {
    for (Index c = 0; c < width; ++c) keys(j, c) = p.k.at(c / dim, j, c % dim);
  }
  return turned(keys, -1);
}

// The principal components of the keys of the first passages.
KeySpectrum spectrum_of(const std::vector<Problem<float>>& problems, std::size_t count) {
  Index all = 0;
  for (std::size_t i = 0; i < count; ++i) all += problems[i].m;
  Matrix<double> keys(all, width);
  for (std::size_t i = 0, at = 0; i < count; at += static_cast<std::size_t>(problems[i++].m)) {
    keys.middleRows(static_cast<Index>(at), problems[i].m) = keys_of(problems[i]);
  }
  const Eigen::RowVectorXd mean = keys.colwise().mean();
  keys.rowwise() -= mean;
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solved(keys.transpose() * keys /
                                                              static_cast<double>(all));
  return {mean.transpose(), solved.eigenvalues().reverse().cwiseMax(0),
          solved.eigenvectors().rowwise().reverse()};
}

double log_sum(const std::vector<double>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double s : logits) sum += std::exp(s - max);
  return max + std::log(sum);
}

// The mean divergence by its definition, in double, with latents that are rounded by the format.
double slow_loss(const Problem<float>& p, const LatentMaps& maps, const LatentFormat& format,
                 std::span<const Index> rows) {
  const Matrix<double> keys = keys_of(p);
  const Eigen::RowVectorXd mean = maps.mean.row(0).cast<double>();
  Matrix<float> latents = ((keys.rowwise() - mean) * maps.encode.cast<double>()).cast<float>();
  Matrix<float> steps;
  format.round(latents, maps.decode.rowwise().squaredNorm(), steps);
  Matrix<double> read = latents.cast<double>() * maps.decode.cast<double>();
  read = turned(read.rowwise() + mean, 1);
  double total = 0;
  for (Index h = 0; h < heads; ++h) {
    for (const Index i : rows) {
      std::vector<double> from, to;
      for (Index j = 0; j < p.m; ++j) {
        from.push_back(p.logit(h, i, j));
        double s = 0;
        for (Index a = 0; a < dim; ++a) s += p.q.at(h, i, a) * read(j, h / group * dim + a);
        to.push_back(from.back() == -infinity ? -infinity
                                              : p.softcap * std::tanh(p.scale * s / p.softcap));
      }
      from.push_back(p.sinks[static_cast<std::size_t>(h)]);
      to.push_back(from.back());
      const double first = log_sum(from), second = log_sum(to);
      for (std::size_t j = 0; j < from.size(); ++j) {
        if (from[j] == -infinity) continue;
        total += std::exp(from[j] - first) * (from[j] - first - to[j] + second);
      }
    }
  }
  return total / static_cast<double>(heads * static_cast<Index>(rows.size()));
}

}  // namespace

// Of all latents of a token, and of each group of them.
TEST(rounding_takes_the_best_of_a_few_steps) {
  const std::vector<int> bits{5, 3, 3, 1};
  const Matrix<float> z = random(200, 4, 1, 3);
  Matrix<float> rounded, steps;
  Vector<float> weights(4);
  weights << 1, 2, 0.5f, 3;
  for (const Index together : {Index(1), Index(2), Index(3), LatentFormat::whole_token}) {
    const LatentFormat format(bits, together);
    rounded = z;
    format.round(rounded, weights, steps);
    for (Index j = 0; j < z.rows(); ++j) {
      for (Index first = 0; first < 4; first += std::min(together, 4 - first)) {
        const Index count = std::min(together, 4 - first);
        const auto part = Eigen::seqN(first, count);
        const auto error = [&](float step) {
          double sum = 0;
          for (Index i = first; i < first + count; ++i) {
            double least = infinity;
            const int codes = 1 << bits[static_cast<std::size_t>(i)];
            for (int c = 0; c < codes; ++c) {
              least = std::min(least, std::pow(step * (c - (codes - 1) / 2.0) - z(j, i), 2));
            }
            sum += weights[i] * least;
          }
          return sum;
        };
        const float taken = steps(j, first / together);
        const auto change = rounded(j, part) - z(j, part);
        const double own = change.cwiseAbs2().dot(weights(part));
        CHECK(std::abs(own - error(taken)) < 1e-5 * own);
        // The step that suits normal numbers of this size, and others about it.
        double mean_square = 0;
        for (Index i = first; i < first + count; ++i) {
          mean_square += std::pow(normal_step(bits[static_cast<std::size_t>(i)]), -2);
        }
        const double usual = std::sqrt(z(j, part).squaredNorm() / mean_square);
        for (const double share : LatentFormat::shares) {
          const float step = static_cast<float>(Eigen::half(static_cast<float>(share * usual)));
          CHECK(own < (1 + 1e-5) * error(step));
        }
        for (Index i = first; i < first + count; ++i) {
          const int codes = 1 << bits[static_cast<std::size_t>(i)];
          const float code = rounded(j, i) / taken + static_cast<float>(codes - 1) / 2;
          CHECK(std::abs(code - std::round(code)) < 1e-4f && code > -0.5f);
          CHECK(code < static_cast<float>(codes) - 0.5f);
        }
        CHECK(static_cast<float>(Eigen::half(taken)) == taken);
      }
    }
    CHECK(steps.cols() == (4 + std::min<Index>(together, 4) - 1) / std::min<Index>(together, 4));
    CHECK(format.step_bytes() == 2 * steps.cols());
    Matrix<float> zeros = Matrix<float>::Zero(1, 4);
    format.round(zeros, weights, steps);
    CHECK(zeros.cwiseAbs().maxCoeff() < 1e-6f);
  }
  // Without a step of its own a token has the odd multiples of 1/2.
  rounded = z * 20;
  const LatentFormat format(bits, 0);
  format.round(rounded, weights, steps);
  CHECK((steps.array() == 1).all() && format.step_bytes() == 0);
  for (Index j = 0; j < z.rows(); ++j) {
    for (Index i = 0; i < 4; ++i) {
      const float reach = static_cast<float>((1 << bits[static_cast<std::size_t>(i)]) - 1);
      CHECK(std::abs(rounded(j, i)) * 2 <= reach && std::fmod(rounded(j, i) - 0.5f, 1.0f) == 0);
      const float nearest = std::clamp(z(j, i) * 20, -reach / 2, reach / 2);
      CHECK(std::abs(rounded(j, i) - nearest) <= 0.5f);
    }
  }
  check_throws<InputError>(__FILE__, __LINE__, "1 ... 8", [] { LatentFormat({9}); });
  check_throws<InputError>(__FILE__, __LINE__, "one number for each", [&] { format.check(3); });
  check_throws<InputError>(__FILE__, __LINE__, "none or some", [] { LatentFormat({2}, -1); });
}

TEST(tokens_are_stored_and_read) {
  constexpr Index entries = 2, tokens = 131, count = entries * tokens;  // more than one task
  constexpr Index stored_heads = width / dim;
  const Matrix<float> angles = table(count);
  constexpr Index all = LatentFormat::whole_token;
  for (const auto& [bits, together] :
       std::initializer_list<std::pair<std::vector<int>, Index>>{{{}, all},
                                                                 {{8, 5, 5, 1, 1}, all},
                                                                 {{1}, all},
                                                                 {std::vector<int>(11, 2), all},
                                                                 {{}, 0},
                                                                 {{8, 5, 5, 1, 1}, 0},
                                                                 {{1}, 0},
                                                                 {{8, 7, 1}, 0},
                                                                 {{}, 2},
                                                                 {{8, 5, 5, 1, 1}, 2},
                                                                 {{8, 5, 5, 1, 1}, 5},
                                                                 {std::vector<int>(11, 2), 4},
                                                                 {{8, 7, 1}, 1}}) {
    const LatentFormat format(bits, together);
    const Index rank = bits.empty() ? 3 : static_cast<Index>(bits.size());
    const TokenStore store{format, random_maps(rank), stored_heads};
    const TokenBatch batch{entries, tokens, {angles.data(), 0, true}};
    const Matrix<float> numbers = random(count * stored_heads, dim, 9);
    const auto at = [&](Index t, Index h) {
      return (t / tokens * stored_heads + h) * tokens + t % tokens;
    };
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count * store.token_bytes()));
    store_tokens(store, batch, numbers.data(), bytes.data(), Run{1, {}});
    auto again = bytes;
    store_tokens(store, batch, numbers.data(), again.data(), Run{3, {}});
    CHECK(again == bytes);

    Matrix<float> rows(count, width);
    for (Index t = 0; t < count; ++t) {
      for (Index h = 0; h < stored_heads; ++h) {
        rows.row(t).segment(h * dim, dim) = numbers.row(at(t, h));
        batch.positions.turn_back(t, rows.row(t).data() + h * dim, dim);
      }
    }
    Matrix<float> latents = (rows.rowwise() - store.maps.mean.row(0)) * store.maps.encode;
    Matrix<float> steps;
    format.round(latents, store.maps.decode.rowwise().squaredNorm(), steps);
    // What a byte says by the definition: bit planes of codes, and the steps.
    std::vector<float> latent(static_cast<std::size_t>(rank));
    Index same = 0;
    for (Index t = 0; t < count; ++t) {
      const std::uint8_t* token = bytes.data() + t * store.token_bytes();
      format.unpack(token, latent);
      const Eigen::Map<const Eigen::RowVectorXf> z(latent.data(), rank);
      if (bits.empty()) {
        CHECK((z - latents.row(t)).cwiseAbs().maxCoeff() < 2e-3f * latents.row(t).norm());
        ++same;
        continue;
      }
      // Sums in another order may round to another multiple.
      same += (z - latents.row(t)).cwiseAbs().maxCoeff() < 1e-5f;
      Index place = 0;
      std::vector<long> codes(bits.size(), 0);
      for (int plane = 0; plane < LatentFormat::most_bits; ++plane) {
        for (std::size_t i = 0; i < bits.size() && bits[i] > plane; ++i, ++place) {
          codes[i] += (token[place / 8] >> (place % 8) & 1L) << plane;
        }
      }
      const Index count = together ? (rank - 1) / std::min(together, rank) + 1 : 0;
      CHECK(store.token_bytes() == (place + 7) / 8 + 2 * count);
      for (std::size_t i = 0; i < bits.size(); ++i) {
        float size = 1;
        if (together) {
          const std::uint8_t* step =
              token + (place + 7) / 8 + 2 * (static_cast<Index>(i) / together);
          const auto half = static_cast<std::uint16_t>(step[1] << 8 | step[0]);
          size = static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(half));
        }
        const float multiple = static_cast<float>(2 * codes[i] - (1 << bits[i]) + 1) / 2;
        CHECK(latent[i] == multiple * size);
      }
    }
    CHECK(same > count * 9 / 10);

    Matrix<float> read(count * stored_heads, dim);
    for (const bool turned : {false, true}) {
      TokenBatch given = batch;
      if (!turned) given.positions = {};
      read_tokens(store, given, bytes.data(), read.data(), Run{turned ? 3 : 1, {}});
      for (Index t = 0; t < count; ++t) {
        format.unpack(bytes.data() + t * store.token_bytes(), latent);
        const Eigen::Map<const Eigen::RowVectorXf> z(latent.data(), rank);
        const Eigen::RowVectorXf row = z * store.maps.decode + store.maps.mean;
        for (Index h = 0; h < stored_heads; ++h) {
          Eigen::RowVectorXf expected = row.segment(h * dim, dim);
          if (turned) batch.positions.turn(t, expected.data(), dim);
          CHECK((read.row(at(t, h)) - expected).cwiseAbs().maxCoeff() < 1e-5f * (1 + row.norm()));
        }
      }
    }
  }
  const TokenStore alone{LatentFormat({2, 1}, 0), random_maps(2), stored_heads};
  Matrix<float> bad = random(stored_heads, dim, 9);
  bad(0, 1) = infinity;
  std::vector<std::uint8_t> byte(1);
  check_throws<NonFiniteError>(__FILE__, __LINE__, "must be finite", [&] {
    store_tokens(alone, {1, 1, {}}, bad.data(), byte.data(), Run{1, {}});
  });
  check_throws<InputError>(__FILE__, __LINE__, "must not rise", [] { LatentFormat({2, 3, 1}); });
  TokenStore wrong{LatentFormat({2, 1}), random_maps(3), stored_heads};
  const auto check = [&] { wrong.check(); };
  check_throws<InputError>(__FILE__, __LINE__, "for each of the 3 latents", check);
  wrong = {LatentFormat(), random_maps(3), 3};
  check_throws<InputError>(__FILE__, __LINE__, "belong together", check);
  wrong = {LatentFormat({2, 2}), random_maps(3), 2};
  check_throws<InputError>(__FILE__, __LINE__, "one number for each", check);
}

TEST(loss_is_the_mean_divergence) {
  const auto problems = passages();
  const auto views = sources(problems);
  const Matrix<float> angles = table(50);
  const KeyLoss loss(views, {angles.data(), 0, true}, Run{2, {}});
  CHECK(loss.width() == width && loss.passages() == 3);
  KeyLoss::Work work;
  const std::vector<Index> rows{0, 3, 4, 17, 29};
  for (const LatentFormat& format : {LatentFormat(), LatentFormat({6, 4, 4}),
                                     LatentFormat({6, 4, 4}, 0), LatentFormat({6, 4, 4}, 2)}) {
    const LatentMaps maps = random_maps(3);
    for (Index p = 0; p < 3; ++p) {
      LatentMaps gradient = LatentMaps::zero(width, 3);
      const double value = loss.evaluate(maps, format, {p, rows}, &gradient, work);
      const double expected = slow_loss(problems[static_cast<std::size_t>(p)], maps, format, rows);
      CHECK_THAT(std::abs(value - expected) < 1e-4 * expected, value, " ", expected);
      CHECK(loss.evaluate(maps, format, {p, rows}, nullptr, work) == value);
    }
  }
}

TEST(gradient_is_the_finite_difference) {
  const auto problems = passages();
  const auto views = sources(problems);
  const Matrix<float> angles = table(50);
  const KeyLoss loss(views, {angles.data(), 0, true}, Run{1, {}});
  KeyLoss::Work work;
  const std::vector<Index> rows{2, 11, 28};
  LatentMaps maps = random_maps(3), gradient = LatentMaps::zero(width, 3);
  loss.evaluate(maps, LatentFormat(), {1, rows}, &gradient, work);
  maps.for_each([&](Matrix<float>& x, const Matrix<float>& g) {
    for (Index i = 0; i < x.size(); ++i) {
      constexpr float step = 2e-3f;
      const float before = x.data()[i];
      x.data()[i] = before + step;
      const double above = slow_loss(problems[1], maps, LatentFormat(), rows);
      x.data()[i] = before - step;
      const double below = slow_loss(problems[1], maps, LatentFormat(), rows);
      x.data()[i] = before;
      const double expected = (above - below) / (2 * double(step));
      CHECK_THAT(std::abs(g.data()[i] - expected) < 2e-3 * g.cwiseAbs().maxCoeff(), g.data()[i],
                 " ", expected);
    }
  }, gradient);
}

// A window of keys before the first query, neighbours that turn together, and few entries in a row.
TEST(few_entries_give_what_the_dense_mask_gives) {
  std::vector<Problem<float>> sparse, dense;
  for (auto* problems : {&sparse, &dense}) {
    Numbers same(3);
    Problem<float>& p = problems->emplace_back(heads, group, 300, 330, dim, same);
    put_sparse(p, same, 0.03);
  }
  make_dense(dense.back());
  const Matrix<float> angles = table(330);
  const std::vector<Index> rows{0, 7, 150, 299};
  LatentMaps maps = random_maps(3);
  LatentMaps first = LatentMaps::zero(width, 3), second = first;
  double losses[2];
  int at = 0;
  for (auto* problems : {&sparse, &dense}) {
    const auto views = sources(*problems);
    const KeyLoss loss(views, {angles.data(), 0, false}, Run{1, {}});
    KeyLoss::Work work;
    losses[at] =
        loss.evaluate(maps, LatentFormat({5, 4, 3}), {0, rows}, at ? &second : &first, work);
    ++at;
  }
  CHECK_THAT(std::abs(losses[0] - losses[1]) < 1e-5 * losses[1], losses[0], " ", losses[1]);
  CHECK((first.encode - second.encode).norm() < 1e-4f * second.encode.norm());
  CHECK((first.decode - second.decode).norm() < 1e-4f * second.decode.norm());
  CHECK((first.mean - second.mean).norm() < 1e-4f * second.mean.norm());
}

// Along a multiple of latents that share a step only this step changes: rounded latents are
// multiplied. Without one, rounding is a shift of what is not cut off.
TEST(gradient_of_rounding_scales_with_the_step) {
  const Matrix<float> z = random(20, 3, 2, 2), weight = random(20, 3, 3);
  Matrix<float> rounded, gradient, steps;
  for (const Index together : {1, 2, 3}) {
    const LatentFormat format({4, 3, 2}, together);
    rounded = z;
    gradient = weight;
    format.round(rounded, Vector<float>::Ones(3), steps);
    format.to_gradient_before(z, rounded, steps, gradient);
    for (Index j = 0; j < 20; ++j) {
      for (Index first = 0; first < 3; first += together) {
        const auto part = Eigen::seqN(first, std::min(together, 3 - first));
        const double along = gradient(j, part).dot(z(j, part)),
                     expected = weight(j, part).dot(rounded(j, part));
        CHECK_THAT(std::abs(along - expected) < 1e-4, along, " ", expected);
      }
    }
  }
  const LatentFormat alone({2, 2, 1}, 0);
  rounded = z;
  gradient = weight;
  alone.round(rounded, Vector<float>::Ones(3), steps);
  alone.to_gradient_before(z, rounded, steps, gradient);
  for (Index j = 0; j < 20; ++j) {
    for (Index i = 0; i < 3; ++i) {
      const bool within = std::abs(z(j, i)) <= (i < 2 ? 2 : 1);
      CHECK(gradient(j, i) == (within ? weight(j, i) : 0));
    }
  }
}

TEST(bits_go_where_they_lower_the_error_most) {
  Vector<double> variances(6);
  variances << 100, 40, 8, 1, 0.9, 0;
  for (const Index total : {2, 5, 9, 14, 40, 100}) {
    const std::vector<int> bits = spend_bits(variances, total, 2, 8);
    CHECK(std::ranges::is_sorted(bits, std::greater()));
    CHECK(std::accumulate(bits.begin(), bits.end(), Index(0)) <= total);
    CHECK(bits.size() <= 5);  // none for what does not vary
    const auto error = [&](const std::vector<int>& spent) {
      double sum = 0;
      for (std::size_t i = 0; i < 6; ++i) {
        sum += variances[static_cast<Index>(i)] * normal_error(i < spent.size() ? spent[i] : 0);
      }
      return sum;
    };
    // No bit is better elsewhere.
    for (std::size_t from = 0; from < bits.size(); ++from) {
      for (std::size_t to = 0; to < bits.size(); ++to) {
        std::vector<int> moved = bits;
        if (bits[from] <= 2 || bits[to] == 8) continue;
        --moved[from];
        ++moved[to];
        CHECK(error(moved) >= error(bits) * (1 - 1e-12));
      }
    }
  }
  CHECK(spend_bits(variances, 1, 2, 8).empty());
  variances << 100, 40, 1e-14, 1e-15, 1e-30, 0;  // of three tokens, and what rounding leaves
  CHECK(spend_bits(variances, 100, 2, 8) == std::vector({8, 8}));
}

TEST(descent_lowers_the_loss_and_repeats_itself) {
  auto problems = passages();
  // Keys vary most where queries hardly look, which principal components do not know.
  for (Problem<float>& p : problems) {
    for (Index i = 0; i < p.n * heads; ++i) p.q.data[static_cast<std::size_t>(i * dim)] *= 0.05f;
    for (Index i = 0; i < p.n * heads; ++i)
      p.q.data[static_cast<std::size_t>(i * dim + 2)] *= 0.05f;
  }
  const Matrix<float> angles = table(50);
  const KeySpectrum spectrum = spectrum_of(problems, 2);
  const LayerPassages layer{sources(problems), {angles.data(), 0, true}, spectrum, 1};
  LatentOptions options;
  options.rank = 5;
  options.steps = 200;
  options.rows = 20;
  LatentResult one = fit_latents(layer, options, Run{1, {}});
  CHECK_THAT(one.loss < 0.2 * one.start, one.loss, " ", one.start);
  options.rank = 0;
  options.total_bits = 36;
  one = fit_latents(layer, options, Run{1, {}});
  CHECK_THAT(one.loss < one.start, one.loss, " ", one.start);
  for (const Index together : {0, 2}) {
    options.latents_per_step = together;
    options.total_bits = together ? 36 : 20;
    const LatentResult other = fit_latents(layer, options, Run{1, {}});
    CHECK_THAT(other.loss < other.start && other.format.has_steps() == (together > 0), other.loss,
               " ", other.start);
  }
  options.latents_per_step = LatentFormat::whole_token;
  options.total_bits = 36;
  CHECK(one.maps.encode.allFinite() && one.maps.decode.allFinite());
  const std::vector<LayerPassages> two{layer, layer};
  const std::vector<LatentOptions> both(2, options);
  Index reported = 0;
  const auto again =
      fit_layers(two, both, [&](Index, const LatentResult&) { ++reported; }, Run{2, {}});
  CHECK(reported == 2);
  for (const LatentResult& result : again) {
    CHECK(result.loss == one.loss && result.maps.encode == one.maps.encode);
  }
  // All latents, as they are: nothing is lost.
  options = {};
  options.rank = width;
  options.steps = 0;
  CHECK(fit_latents(layer, options, Run{1, {}}).loss < 1e-6);
  // A budget has room for the steps of the latents that it buys, and for no more latents.
  for (const Index bytes : {3, 4, 6, 11, 20}) {
    for (const Index together :
         {Index(0), Index(1), Index(2), Index(3), LatentFormat::whole_token}) {
      LatentOptions sizes;
      sizes.total_bits = 8 * bytes;
      sizes.latents_per_step = together;
      const LatentFormat found = principal_result(spectrum, sizes).format;
      CHECK(found.token_bytes(0) <= bytes);
      const auto error = [&](const std::vector<int>& bits) {
        double sum = 0;
        for (std::size_t i = 0; i < static_cast<std::size_t>(width); ++i) {
          sum += spectrum.variances[static_cast<Index>(i)] *
                 normal_error(i < bits.size() ? bits[i] : 0);
        }
        return sum;
      };
      for (Index most = 1; most <= width; ++most) {
        std::vector<int> other = spend_bits(spectrum.variances.head(most), 8 * bytes, 2, 8);
        for (Index left = 8 * bytes; LatentFormat(other, together).token_bytes(0) > bytes;) {
          other = spend_bits(spectrum.variances.head(most), --left, 2, 8);
        }
        CHECK(error(found.bits()) <= error(other) * (1 + 1e-12));
      }
    }
  }
  const LatentResult alone = principal_result(spectrum, options);
  CHECK((alone.maps.encode * alone.maps.decode).isIdentity(1e-4f));
  KeySpectrum narrow = spectrum;
  narrow.variances.conservativeResize(width - 1);
  check_throws<InputError>(__FILE__, __LINE__, "a principal component for each",
                           [&] { principal_result(narrow, options); });
  options.rank = width + 1;
  check_throws<InputError>(__FILE__, __LINE__, "more latents",
                           [&] { fit_latents(layer, options, Run{1, {}}); });
  check_throws<InputError>(__FILE__, __LINE__, "a passage to fit to", [&] {
    fit_latents({layer.passages, layer.positions, spectrum, 3}, options, Run{1, {}});
  });
}
