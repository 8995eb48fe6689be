// Maps that make a head smaller: the loss against its definition, its gradient, and the descent.
#include <algorithm>

#include "check.hpp"
#include "headfit/compress/compress.hpp"
#include "headfit/soft/compare.hpp"
#include "problem.hpp"

using namespace headfit;
using namespace headfit::test;

namespace {

constexpr Index heads = 2, dim = 5;

// Passages of two query heads that share their keys, of different lengths, without sinks or with.
template <class T>
std::vector<Problem<T>> passages(const std::vector<double>& sinks = {}, double softcap = 2) {
  Numbers numbers(1);
  std::vector<Problem<T>> found;
  for (const Index n : {7, 40, 129}) {
    found.emplace_back(heads, heads, n, n, dim, numbers);
    found.back().mask.right = 0;
  }
  found[1].mask.left = 6;
  for (Problem<T>& passage : found) {
    passage.softcap = softcap;
    passage.sinks = sinks;
  }
  return found;
}

template <class T>
std::vector<LogitSource<T>> sources(const std::vector<Problem<T>>& problems) {
  std::vector<LogitSource<T>> found;
  for (const Problem<T>& p : problems) found.push_back(p.source());
  return found;
}

Matrix<double> random_maps(Index size, std::uint64_t seed) {
  Numbers numbers(seed);
  Matrix<double> maps((heads + 1) * dim, size);
  for (Index i = 0; i < maps.size(); ++i) maps.data()[i] = numbers.next();
  return maps;
}

// The divergence of a row of logits from another, which is -inf where the first one is.
double divergence(const std::vector<double>& from, const std::vector<double>& to) {
  const auto log_sum = [](const std::vector<double>& logits) {
    const double max = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const double s : logits) sum += std::exp(s - max);
    return max + std::log(sum);
  };
  const double first = log_sum(from), second = log_sum(to);
  double total = 0;
  for (std::size_t j = 0; j < from.size(); ++j) {
    if (from[j] == -infinity) continue;
    total += std::exp(from[j] - first) * (from[j] - first - to[j] + second);
  }
  return total;
}

// The mean divergence by its definition.
template <class T>
double slow_loss(const std::vector<Problem<T>>& problems, const Matrix<double>& maps) {
  double total = 0;
  Index rows = 0;
  for (const Problem<T>& p : problems) {
    for (Index h = 0; h < heads; ++h) {
      const Matrix<double> product =
          maps.middleRows(h * dim, dim) * maps.bottomRows(dim).transpose();
      for (Index i = 0; i < p.n; ++i, ++rows) {
        std::vector<double> from, to;
        for (Index j = 0; j < p.m; ++j) {
          double s = 0;
          for (Index a = 0; a < dim; ++a) {
            for (Index b = 0; b < dim; ++b) {
              s += double(p.q.at(h, i, a)) * product(a, b) * double(p.k.at(0, j, b));
            }
          }
          from.push_back(p.logit(h, i, j));
          const double capped = p.softcap > 0 ? p.softcap * std::tanh(s / p.softcap) : s;
          to.push_back(from.back() == -infinity ? -infinity : capped);
        }
        // A sink is one more class, whose logit no map changes.
        from.push_back(p.source().sink(h));
        to.push_back(from.back());
        total += divergence(from, to);
      }
    }
  }
  return total / static_cast<double>(rows);
}

template <class T>
void check_loss(const std::vector<double>& sinks, double softcap, double tolerance) {
  const auto problems = passages<T>(sinks, softcap);
  const auto views = sources(problems);
  const CompressLoss<T> loss(views, Run{1, {}});
  for (const Index size : {1, 3, 5}) {
    const Matrix<double> maps = random_maps(size, 2);
    Matrix<double> gradient;
    const double value = loss.evaluate(maps, &gradient, Run{1, {}});
    const double expected = slow_loss(problems, maps);
    CHECK_THAT(std::abs(value - expected) < tolerance * expected, size, " ", value, " ", expected);
    CHECK(loss.evaluate(maps, nullptr, Run{1, {}}) == value);
    Matrix<double> of_targets;
    const auto targets = loss.all_targets(Run{2, {}});
    const double again = loss.evaluate(maps, &of_targets, Run{2, {}}, &targets);
    CHECK_THAT(std::abs(again - expected) < tolerance * expected, size, " ", again, " ", expected);
    CHECK((of_targets - gradient).norm() < tolerance * gradient.norm());
    for (const int threads : {2, 3}) {  // bit for bit
      Matrix<double> same;
      CHECK(loss.evaluate(maps, &same, Run{threads, {}}) == value);
      CHECK(same == gradient);
    }
  }
}

std::vector<Problem<float>> passages_of_scale(double scale) {
  auto problems = passages<float>({}, 0);
  for (Problem<float>& problem : problems) problem.scale = scale;
  return problems;
}

// The maps of all dimensions that leave these logits as they are, and some noise.
Matrix<double> maps_near_the_head(double scale, double noise, std::uint64_t seed) {
  Matrix<double> maps = noise * random_maps(dim, seed);
  for (Index i = 0; i < dim; ++i) {
    for (Index h = 0; h < heads; ++h) maps(h * dim + i, i) += scale;
    maps(heads * dim + i, i) += 1;
  }
  return maps;
}

}  // namespace

TEST(loss_is_the_mean_divergence) {
  for (const std::vector<double>& sinks : {std::vector<double>{}, {0.5, -1}, {9, -infinity}}) {
    for (const double softcap : {0.0, 2.0}) {
      check_loss<double>(sinks, softcap, 1e-11);
      check_loss<float>(sinks, softcap, 1e-4);
    }
  }
}

// Passages that are long enough for several units.
TEST(loss_of_few_entries_is_that_of_the_dense_mask) {
  for (const double softcap : {0.0, 2.0}) {
    for (const std::vector<double>& sinks : {std::vector<double>{}, {0.5, -1}}) {
      std::vector<Problem<double>> sparse, dense;
      for (const Index n : {1, 40, 1300}) {
        for (auto* problems : {&sparse, &dense}) {
          Numbers numbers(static_cast<std::uint64_t>(n));
          Problem<double>& p = problems->emplace_back(heads, heads, n, n, dim, numbers);
          put_sparse(p, numbers, 0.02);
          if (n == 40) {  // the last row attends to all keys
            p.sparse_columns.resize(static_cast<std::size_t>(p.sparse_offsets[39]));
            for (Index j = 0; j < n; ++j) p.sparse_columns.push_back(static_cast<Column>(j));
            p.sparse_offsets.back() = static_cast<Offset>(p.sparse_columns.size());
          }
          p.mask.sparse_columns = p.sparse_columns.data();
          p.softcap = softcap;
          p.sinks = sinks;
        }
        CHECK(n == 1 || whole_row_layouts(sparse.back().source(), Run{1, {}}).rows);
        make_dense(dense.back());
      }
      const auto views = sources(sparse), dense_views = sources(dense);
      const CompressLoss<double> one(views, Run{1, {}}), other(dense_views, Run{1, {}});
      CHECK(one.rows() == other.rows());
      CHECK((one.moments().keys - other.moments().keys).norm() < 1e-12);
      for (Index h = 0; h < heads; ++h) {
        const auto at = static_cast<std::size_t>(h);
        CHECK((one.moments().queries[at] - other.moments().queries[at]).norm() < 1e-12);
      }
      const Matrix<double> maps = random_maps(3, 2);
      Matrix<double> gradient, expected;
      const double loss = one.evaluate(maps, &gradient, Run{3, {}});
      CHECK(std::abs(loss - other.evaluate(maps, &expected, Run{1, {}})) < 1e-12);
      CHECK((gradient - expected).norm() < 1e-12);
      const auto targets = one.all_targets(Run{2, {}});
      CHECK(std::abs(one.evaluate(maps, &gradient, Run{1, {}}, &targets) - loss) < 1e-11);
      CHECK((gradient - expected).norm() < 1e-11);
    }
  }
}

TEST(gradient_is_the_finite_difference) {
  const auto problems = passages<double>({0.5, 3});
  const auto views = sources(problems);
  const CompressLoss<double> loss(views, Run{2, {}});
  const Matrix<double> maps = random_maps(2, 3);
  Matrix<double> gradient;
  loss.evaluate(maps, &gradient, Run{2, {}});
  constexpr double step = 1e-6;
  for (Index i = 0; i < maps.size(); ++i) {
    Matrix<double> above = maps, below = maps;
    above.data()[i] += step;
    below.data()[i] -= step;
    const double difference =
        (loss.evaluate(above, nullptr, Run{2, {}}) - loss.evaluate(below, nullptr, Run{2, {}})) /
        (2 * step);
    CHECK_THAT(std::abs(gradient.data()[i] - difference) < 1e-6, i, " ", difference);
  }
}

TEST(descent_ends_at_a_lower_loss) {
  const auto problems = passages<float>();
  const auto views = sources(problems);
  const CompressLoss<float> loss(views, Run{2, {}});
  CompressOptions options;
  options.start = random_maps(3, 4);
  options.limits.max_steps = 40;
  const CompressResult one = fit_maps(loss, &loss, options, Run{1, {}});
  for (std::size_t i = 1; i < one.history.size(); ++i) CHECK(one.history[i] < one.history[i - 1]);
  CHECK_THAT(one.history.back() < 0.5 * one.history.front(), one.history.back());
  CHECK(loss.evaluate(one.maps, nullptr, Run{1, {}}) == one.history.back());
  CHECK(fit_maps(loss, &loss, options, Run{3, {}}).maps == one.maps);
}

TEST(descent_goes_on_where_rounding_is_larger_than_the_loss) {
  constexpr double scale = 64;
  const auto problems = passages_of_scale(scale);
  const auto views = sources(problems);
  const CompressLoss<float> loss(views, Run{2, {}});
  CompressOptions options;
  options.start = maps_near_the_head(scale, 0.1, 4);
  options.limits = {500, 1e-3, 1e-6};
  const CompressResult one = fit_maps<float>(loss, nullptr, options, Run{1, {}});
  CHECK_THAT(slow_loss(problems, one.maps) < 1e-5, slow_loss(problems, one.maps));
  CHECK(fit_maps<float>(loss, nullptr, options, Run{3, {}}).maps == one.maps);
}

// Where each row attends to one key alone, the covariance of what rows attend to is rounding.
TEST(descent_of_sharp_heads_goes_on) {
  auto problems = passages<float>({}, 0);
  for (Problem<float>& p : problems) {
    for (float& x : p.q.data) x *= 300;
    for (float& x : p.k.data) x *= 300;
  }
  const auto views = sources(problems);
  const CompressLoss<float> loss(views, Run{1, {}});
  CompressOptions options;
  options.start = random_maps(3, 4);
  options.limits.max_steps = 200;
  const CompressResult one = fit_maps<float>(loss, nullptr, options, Run{1, {}});
  CHECK_THAT(one.history.back() < 1e-3 * one.history.front(), one.history.front(), " ",
             one.history.back());
}

// The loss of a start is small enough here, until it is computed again with less rounding: that of
// some starts is larger then.
TEST(descent_makes_no_more_steps_than_it_may) {
  int larger = 0;
  for (const double scale : {24, 32, 48, 64, 96}) {
    const auto problems = passages_of_scale(scale);
    const auto views = sources(problems);
    const CompressLoss<float> loss(views, Run{1, {}});
    const auto targets = loss.all_targets(Run{1, {}});
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      CompressOptions options;
      options.start = maps_near_the_head(scale, 0.01, seed);
      const double enough = loss.evaluate(options.start, nullptr, Run{1, {}});
      options.limits = {0, 1e-3, enough};
      const CompressResult found = fit_maps<float>(loss, nullptr, options, Run{1, {}});
      CHECK(found.history.size() == 1);
      const bool is_larger = loss.evaluate(options.start, nullptr, Run{1, {}}, &targets) > enough;
      CHECK(found.status == (is_larger ? DescentStatus::StepLimit : DescentStatus::Enough));
      larger += is_larger;
    }
  }
  CHECK_THAT(larger > 0, larger);
}

TEST(a_head_is_as_close_as_can_be_to_itself) {
  const auto problems = passages<double>();
  const auto views = sources(problems);
  const auto rows = compare_heads(views, views, Run{2, {}});
  CHECK(rows.size() == problems.size() * heads);
  for (const SoftDistances& of_head : rows) {
    for (const double variation : of_head.variation) CHECK(variation < 1e-12);
  }
}

TEST(passages_that_do_not_fit_are_refused) {
  auto problems = passages<float>();
  Numbers numbers(5);
  problems.emplace_back(heads, 1, 9, 9, dim, numbers);
  CHECK_THROWS(InputError, "one key head", CompressLoss<float>(sources(problems), Run{1, {}}));
  problems.pop_back();
  problems.emplace_back(1, 1, 9, 9, dim, numbers);
  CHECK_THROWS(InputError, "as many query heads",
               CompressLoss<float>(sources(problems), Run{1, {}}));
}
