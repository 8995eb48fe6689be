// Indexes: their formats, scores, loss and gradient, what they find, and the descent, against their
// definitions.
#include <algorithm>
#include <numeric>

#include "check.hpp"
#include "headfit/index/fit_index.hpp"
#include "headfit/index/judge.hpp"
#include "problem.hpp"

using namespace headfit;
using namespace headfit::test;

namespace {

constexpr Index heads = 4, size = 8, dim = 4;
constexpr int kinds = 6;  // of problems

Matrix<float> random(Index rows, Index cols, std::uint64_t seed, double scale = 1) {
  Numbers numbers(seed);
  Matrix<float> x(rows, cols);
  for (float& entry : x.reshaped()) entry = static_cast<float>(scale * numbers.next());
  return x;
}

Matrix<float> random_maps(Index key_heads = 1) {
  return random((heads + key_heads) * size, dim, 5, 0.4 / static_cast<double>(key_heads));
}

Problem<float> problem(Index n, std::uint64_t seed, int kind = 0) {
  Numbers numbers(seed);
  const Index group = kind == 4 ? 2 : kind == 5 ? 1 : heads;  // query heads of a key head
  Problem<float> p(heads, group, n, n, size, numbers);
  p.mask.right = 0;
  if (kind == 1) {
    p.softcap = 3;
    p.sinks = {0.5, -1, 2, 0};
  }
  if (kind == 2) {  // padding on the left, and a hole, the same for each head
    p.keys = std::make_unique<bool[]>(static_cast<std::size_t>(heads * n));
    for (Index j = 0; j < heads * n; ++j) {
      p.keys[static_cast<std::size_t>(j)] = j % n > 5 && j % n % 7 != 3;
    }
    p.mask.keys = p.keys.get();
    p.mask.keys_head = n;
    p.mask.keys_col = 1;
  }
  if (kind == 3) p.mask.right.reset();
  return p;
}

// What the members of this file compare with, in double and for formats that do not round.
struct Slow {
  const Problem<float>& p;
  const Matrix<double> maps;
  IndexOptions options;

  // Whether a column is one of those that are kept anyway: the first that are seen, and the window.
  std::vector<char> kept(Index i) const {
    std::vector<char> found(static_cast<std::size_t>(p.m), 0);
    const Index position = i + p.m - p.n;
    for (Index j = 0, seen = 0; j < p.m; ++j) {
      if (!p.mask.allows(0, i, j, p.n, p.m)) continue;
      const bool in_window = j <= position && j > position - options.kept.window;
      found[static_cast<std::size_t>(j)] = seen++ < options.kept.first || in_window;
    }
    return found;
  }

  double product(Index h, Index i, Index j) const {
    if (!p.mask.allows(0, i, j, p.n, p.m)) return -infinity;
    double sum = 0;
    for (Index c = 0; c < maps.cols(); ++c) {
      double q = 0, k = 0;
      for (Index f = 0; f < size; ++f) {
        q += p.q.at(h, i, f) * maps(h * size + f, c);
        for (Index g = 0; g < p.k.count; ++g) {
          k += p.k.at(g, j, f) * maps((heads + g) * size + f, c);
        }
      }
      sum += q * k;
    }
    return sum;
  }

  Vector<double> scores(Index i) const {
    Vector<double> s = Vector<double>::Constant(p.m, -infinity);
    for (Index h = 0; h < heads; ++h) {
      Vector<double> l(p.m);
      for (Index j = 0; j < p.m; ++j) l[j] = product(h, i, j);
      if (options.form == IndexForm::dot) {
        s = h == 0 ? l : Vector<double>(s + l);
        continue;
      }
      const double log_sum = std::log(l.array().exp().sum());
      for (Index j = 0; j < p.m; ++j) {
        const double sum = std::exp(s[j]) + std::exp(l[j] - log_sum);
        s[j] = sum > 0 ? std::log(sum) : -infinity;
      }
    }
    return s;
  }

  Vector<double> attention(Index i) const {
    Vector<double> mean = Vector<double>::Zero(p.m);
    for (Index h = 0; h < heads; ++h) {
      Vector<double> e(p.m);
      for (Index j = 0; j < p.m; ++j) e[j] = std::exp(p.logit(h, i, j));
      double sum = e.sum();
      if (!p.sinks.empty()) sum += std::exp(p.sinks[static_cast<std::size_t>(h)]);
      if (sum > 0) mean += e / (sum * heads);
    }
    return mean;
  }

  double loss(std::span<const Index> rows) const {
    double sum = 0, mass = 0;
    for (const Index i : rows) {
      const Vector<double> s = scores(i), a = attention(i);
      const std::vector<char> is_kept = kept(i);
      double whole = 0;
      for (Index j = 0; j < p.m; ++j) {
        if (!is_kept[static_cast<std::size_t>(j)]) whole += std::exp(s[j]);
      }
      for (Index j = 0; j < p.m; ++j) {
        if (is_kept[static_cast<std::size_t>(j)] || s[j] == -infinity) continue;
        sum -= a[j] * (s[j] - std::log(whole));
        mass += a[j];
      }
    }
    return mass > 0 ? sum / mass : 0;
  }
};

IndexOptions plain(IndexForm form, Index first = 2, Index window = 5) {
  return {form, IndexFormat("float32"), {first, window}};
}

}  // namespace

TEST(formats_hold_what_their_dtypes_hold) {
  Matrix<float> x(2, 5);
  x << 448, 1.0625f, -17, 0.0009f, 0, 3, -3, 1, 0.5f, 0.4f;
  Vector<float> scales;
  Matrix<float> rounded = x;
  IndexFormat("float8_e4m3fn").round_keys(rounded, scales);
  CHECK(scales[0] == 1);  // 448 / 448
  CHECK(rounded(0, 0) == 448 && rounded(0, 1) == 1 && rounded(0, 2) == -16);  // halves to even
  CHECK(rounded(0, 3) == 0 && rounded(0, 4) == 0);  // below half of 2^-9
  CHECK(scales[1] == static_cast<float>(Eigen::bfloat16(3.0f / 448)));
  rounded = x;
  IndexFormat("int4").round_keys(rounded, scales);
  for (Index c = 0; c < 5; ++c) {
    const float code = rounded(1, c) / scales[1];
    CHECK(std::abs(code - std::round(code)) < 1e-5f && std::abs(code) <= 7.001f);
  }
  rounded = x;
  IndexFormat("bfloat16").round_keys(rounded, scales);
  CHECK(rounded(0, 1) == 1.0625f && scales[0] == 1 && scales[1] == 1);
  rounded = Matrix<float>::Zero(2, 3);
  IndexFormat("int8").round_keys(rounded, scales);
  CHECK(rounded.isZero() && scales.minCoeff() > 0);
  // Keys without a scale are cut off; queries have theirs.
  rounded = x;
  rounded(1, 0) = -1000;
  IndexFormat("float8_e4m3fn-unscaled").round_keys(rounded, scales);
  CHECK(rounded(1, 0) == -448 && rounded(1, 4) == 0.40625f && scales[1] == 1);
  rounded = x;
  IndexFormat("int4-unscaled").round_keys(rounded, scales);
  CHECK(rounded(0, 0) == 7 && rounded(0, 2) == -7 && rounded(1, 1) == -3 && scales[0] == 1);
  rounded = x;
  IndexFormat("int4-unscaled").round_queries(rounded, scales);
  CHECK(scales[0] == 64);
  for (const char* name : {"int3", "int4-", "int8-scaled", "float16-unscaled"}) {
    check_throws<InputError>(__FILE__, __LINE__, std::string("no index of ") + name,
                             [&] { IndexFormat{std::string(name)}; });
  }
}

TEST(scores_and_loss_are_their_definitions) {
  for (int kind = 0; kind < kinds; ++kind) {
    for (const IndexForm form : {IndexForm::sum, IndexForm::dot}) {
      const Problem<float> p = problem(60, 1 + static_cast<std::uint64_t>(kind), kind);
      const Matrix<float> maps = random_maps(p.k.count);
      const IndexOptions options = plain(form);
      const Slow slow{p, maps.cast<double>(), options};
      Matrix<float> scores(p.n, p.m);
      score_keys(p.source(), maps, options, scores.data(), Run{2, {}});
      for (Index i = 0; i < p.n; ++i) {
        const Vector<double> expected = slow.scores(i);
        for (Index j = 0; j < p.m; ++j) {
          if (expected[j] == -infinity) {
            CHECK(scores(i, j) == -std::numeric_limits<float>::infinity());
          } else {
            CHECK_THAT(std::abs(scores(i, j) - expected[j]) < 1e-4, scores(i, j), " ", expected[j]);
          }
        }
      }
      const std::vector<Index> rows{59, 3, 20, 41, 0};
      IndexLoss loss;
      const double found = loss.evaluate(p.source(), maps, options, rows, nullptr);
      CHECK_THAT(std::abs(found - slow.loss(rows)) < 1e-4, found, " ", slow.loss(rows));
    }
  }
}

TEST(gradient_is_the_slope_of_the_loss) {
  for (int kind = 0; kind < kinds; ++kind) {
    for (const IndexForm form : {IndexForm::sum, IndexForm::dot}) {
      const Problem<float> p = problem(60, 11, kind);
      const Matrix<float> maps = random_maps(p.k.count);
      const IndexOptions options = plain(form);
      std::vector<Index> rows(60);
      std::iota(rows.begin(), rows.end(), Index(0));
      IndexLoss loss;
      Matrix<float> gradient;
      loss.evaluate(p.source(), maps, options, rows, &gradient);
      for (const Index entry : {Index(1), Index(30), Index(70), Index(97), Index(120), Index(130),
                                Index(150), maps.size() - 1}) {
        Matrix<double> moved = maps.cast<double>();
        const double step = 1e-4;
        moved.data()[entry] += step;
        const double above = Slow{p, moved, options}.loss(rows);
        moved.data()[entry] -= 2 * step;
        const double slope = (above - Slow{p, moved, options}.loss(rows)) / (2 * step);
        const double found = static_cast<double>(gradient.data()[entry]);
        CHECK_THAT(std::abs(found - slope) < 1e-3 * (1 + std::abs(slope)), found, " ", slope);
      }
    }
  }
}

// Products hundreds apart underflow in a sum of softmaxes.
TEST(loss_stays_finite_where_softmaxes_underflow) {
  const Problem<float> p = problem(60, 3);
  const std::vector<Index> rows{59, 40};
  IndexLoss loss;
  Matrix<float> gradient;
  for (const float factor : {10.0f, 40.0f}) {
    const Matrix<float> maps = factor * random_maps();
    const double found = loss.evaluate(p.source(), maps, plain(IndexForm::sum), rows, &gradient);
    CHECK(std::isfinite(found) && gradient.allFinite());
  }
}

TEST(what_is_found_are_the_best_keys) {
  for (int kind = 0; kind < kinds; ++kind) {
    const Problem<float> p = problem(60, 21, kind);
    const Matrix<float> maps = random_maps(p.k.count);
    const IndexOptions options = plain(IndexForm::sum);
    const Slow slow{p, maps.cast<double>(), options};
    const Index keys = 12;
    std::vector<Column> found(static_cast<std::size_t>(p.n * keys));
    select_keys(p.source(), maps, options, keys, found.data(), Run{1, {}});
    const IndexJudgement judged = judge_index(p.source(), maps, options, keys, Run{2, {}});
    const Index fewer = options.kept.count() - 1;
    CHECK_THROWS(InputError, "keys must be at least",
                 select_keys(p.source(), maps, options, fewer, found.data(), Run{1, {}}));
    CHECK_THROWS(InputError, "keys must be at least",
                 judge_index(p.source(), maps, options, fewer, Run{1, {}}));
    LogitSource<float> scored = p.source();
    --scored.k.rows;
    CHECK_THROWS(InputError, "must have the rows and keys of the passage",
                 judge_logits(p.source(), scored, options.kept, keys, Run{1, {}}));
    std::vector<Column> both = found;  // and the first keys of each row, masked ones among them
    for (Index i = 0; i < p.n * keys; ++i) both.push_back(static_cast<Column>(i % keys));
    const Vector<double> gained = gained_mass(p.source(), maps, options, keys, both, Run{2, {}});
    Vector<double> gains = Vector<double>::Zero(3);
    for (Index i = 0; i < p.n; ++i) {
      const Vector<double> scores = slow.scores(i), a = slow.attention(i);
      const std::vector<char> kept = slow.kept(i);
      std::vector<Column> free;
      double of_kept = 0;
      for (Index j = 0; j < p.m; ++j) {
        if (kept[static_cast<std::size_t>(j)]) {
          of_kept += a[j];
        } else if (scores[j] != -infinity) {
          free.push_back(static_cast<Column>(j));
        }
      }
      CHECK(judged.free[i] == static_cast<double>(free.size()));
      CHECK(std::abs(judged.kept[i] - of_kept) < 1e-5);
      const auto best = [&](const Vector<double>& values) {
        std::vector<Column> order = free;
        std::ranges::stable_sort(order, [&](Column x, Column y) { return values[x] > values[y]; });
        order.resize(std::min<std::size_t>(order.size(), 5));  // 12 less first 2 and window 5
        return order;
      };
      if (free.size() > 5) {
        gains[0] += judged.found[i] - judged.kept[i];
        for (const Column j : free) gains[1] += j < keys ? a[j] : 0;
        gains[2] += judged.exact[i] - judged.kept[i];
      }
      std::vector<Column> expected = best(scores);
      const std::vector<Column> exact = best(a);
      double mass = of_kept, most = of_kept;
      Index hits = 0;
      for (const Column j : expected) mass += a[j];
      for (const Column j : exact) {
        most += a[j];
        hits += std::ranges::count(expected, j);
      }
      CHECK_THAT(std::abs(judged.found[i] - mass) < 1e-5, judged.found[i], " ", mass);
      CHECK(std::abs(judged.exact[i] - most) < 1e-5);
      if (!exact.empty()) {
        CHECK(std::abs(judged.recall[i] * static_cast<double>(exact.size()) -
                       static_cast<double>(hits)) < 1e-9);
        CHECK((judged.heaviest[i] == 1) == (std::ranges::count(expected, exact[0]) == 1));
      }
      for (Index j = 0; j < p.m; ++j) {
        if (kept[static_cast<std::size_t>(j)]) expected.push_back(static_cast<Column>(j));
      }
      std::ranges::sort(expected);
      expected.resize(static_cast<std::size_t>(keys), -1);
      CHECK(std::equal(expected.begin(), expected.end(), found.begin() + i * keys));
    }
    CHECK_THAT((gained - gains).cwiseAbs().maxCoeff() < 1e-3, gained, " ", gains);
  }
}

TEST(descent_lowers_the_loss_and_repeats_itself) {
  std::vector<Problem<float>> problems;
  for (const Index n : {80, 60, 70}) {
    problems.push_back(problem(n, static_cast<std::uint64_t>(n)));
    // All heads look at the same two numbers of the keys.
    for (float& x : problems.back().q.data) x *= 0.2f;
    for (Index h = 0; h < heads; ++h) {
      for (Index i = 0; i < n; ++i) problems.back().q.at(h, i, 2) *= 20;
    }
  }
  Matrix<float> table(101, size);
  for (Index i = 0; i <= 100; ++i) {
    for (Index f = 0; f < size / 2; ++f) {
      const double angle = static_cast<double>(i) * std::pow(0.1, static_cast<double>(f));
      table(i, f) = static_cast<float>(std::cos(angle));
      table(i, size / 2 + f) = static_cast<float>(std::sin(angle));
    }
  }
  IndexPassages group;
  for (const Problem<float>& p : problems) group.passages.push_back(p.source());
  group.choosing = 1;
  const IndexOptions options{IndexForm::sum, IndexFormat("float8_e4m3fn"), {2, 5}};
  const Matrix<float> start = 0.3f * random_maps();
  const IndexResult alone = fit_index(group, start, options, {200, 32, 24, 0});
  CHECK_THAT(alone.loss < alone.start - 0.1, alone.start, " ", alone.loss);
  group.positions = {table.data(), 0, true};
  group.reach = 100;
  const IndexResult moved = fit_index(group, start, options, {200, 32, 24, 0});
  CHECK_THAT(moved.loss < moved.start && moved.loss > alone.loss, moved.start, " ", moved.loss);
  const std::vector<IndexPassages> two{group, group};
  const std::vector<Matrix<float>> starts{start, start};
  Index reported = 0;
  const auto again = fit_indexes(two, starts, options, {200, 32, 24, 0},
                                 [&](Index, const IndexResult&) { ++reported; }, Run{2, {}});
  CHECK(reported == 2 && again[0].maps == moved.maps && again[1].maps == moved.maps);
  group.choosing = 3;
  check_throws<InputError>(__FILE__, __LINE__, "a passage to fit to",
                           [&] { fit_index(group, start, options, {}); });
  group.choosing = 1;
  const Problem<float> of_layer = problem(60, 60, 4);
  group.passages[1] = of_layer.source();
  check_throws<InputError>(__FILE__, __LINE__, "as many heads",
                           [&] { fit_index(group, start, options, {}); });
  group.passages[1] = problems[1].source();
  check_throws<InputError>(__FILE__, __LINE__, "rows for each query head",
                           [&] { fit_index(group, start.topRows(5), options, {}); });
  const Problem<float> padded = problem(60, 1, 2);
  padded.keys[61] = !padded.keys[61];
  check_throws<InputError>(__FILE__, __LINE__, "have the same mask",
                           [&] { check_index_passage(padded.source()); });
  Problem<float> biased = problem(60, 1);
  biased.bias.assign(heads * 60 * 60, 0.5f);
  check_throws<InputError>(__FILE__, __LINE__, "knows no bias",
                           [&] { check_index_passage(biased.source()); });
}
