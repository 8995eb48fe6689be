// How fast the parts of the core are on one thread: the multiplying kernel, exponentials, folds over
// the stream of logits, and gradients. Most check a part of their answer afterwards; the rate is of
// multiplications and additions of the products, or of exponentials.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>

#include "headfit/attention/attention.hpp"
#include "headfit/attention/softmax_row.hpp"
#include "headfit/certify/certificate.hpp"
#include "headfit/learned/fit_learned.hpp"
#include "headfit/logits/stream.hpp"
#include "headfit/soft/fit_soft.hpp"
#include "sample.hpp"

using namespace headfit;
using headfit::test::OwnedTarget;

namespace {

const Run one_thread{1, {}};

template <class T>
Matrix<T> normal_numbers(Index rows, Index cols, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<T> normal;
  return Matrix<T>::NullaryExpr(rows, cols, [&] { return normal(generator); });
}

// A pattern with 4 keys a row at random, in equal shares.
OwnedTarget four_keys(Index n) { return test::regular_target(n, 4, 1, true); }

// n queries and keys of size d, whose logits have a variance of about 1.
template <class T>
struct Sample {
  Matrix<T> q, k;

  Sample(Index n, Index d) : q(normal_numbers<T>(n, d, 1)), k(normal_numbers<T>(n, d, 2)) {}

  LogitSource<T> logits() const {
    LogitSource<T> source;
    source.q = heads_of(q);
    source.k = heads_of(k);
    source.scale = 1 / std::sqrt(static_cast<double>(q.cols()));
    return source;
  }
  // Logit (i, j), in double.
  double logit(Index i, Index j) const {
    return q.row(i).template cast<double>().dot(k.row(j).template cast<double>()) * logits().scale;
  }
};

// Sizes n and d: more keys than fit the first cache, and the head sizes of fits and of models.
void sizes(benchmark::internal::Benchmark* b) {
  b->Args({2048, 8})->Args({2048, 64})->Args({2048, 128})->Unit(benchmark::kMillisecond);
}

void count_products(benchmark::State& state, double passes = 1) {
  const double n = static_cast<double>(state.range(0)), d = static_cast<double>(state.range(1));
  state.counters["flop/s"] =
      benchmark::Counter(2 * passes * n * n * d, benchmark::Counter::kIsIterationInvariantRate,
                         benchmark::Counter::kIs1000);
}

void check(benchmark::State& state, double got, double expected, double tolerance) {
  if (!(std::abs(got - expected) <= tolerance)) state.SkipWithError("a wrong answer");
}

// A fold that no logit passes: what is left is packing and multiplying.
template <class T>
class NoLogit {
 public:
  void begin(const RowBlock&) {}
  void end(const RowBlock&) {}
  const T* limits(const RowBlock&) const { return limits_.data(); }
  void hits(const RowBlock&, Index, Index, const T*, std::uint32_t) {}

 private:
  Vector<T> limits_ =
      Vector<T>::Constant(2 * Blocking<T>::tile_rows, std::numeric_limits<T>::infinity());
};

template <class T>
void multiply(benchmark::State& state) {
  const Sample<T> sample(state.range(0), state.range(1));
  const LogitSource<T> source = sample.logits();
  for (auto _ : state) stream_tiles(source, one_thread, [] { return NoLogit<T>(); });
  count_products(state);
}
BENCHMARK(multiply<float>)->Apply(sizes);
BENCHMARK(multiply<double>)->Apply(sizes);

template <class T>
void exponentials(benchmark::State& state) {
  const Index count = 4096;
  Matrix<T> row = normal_numbers<T>(1, count, 3);
  const auto shift = simd::RowShift<T>::at(row_max(row.data(), count));
  double sum = 0;
  for (auto _ : state) {
    sum = exp_sum<T, Exponentials::discard>(row.data(), count, shift);
    benchmark::DoNotOptimize(sum);
  }
  const double expected = row.template cast<double>().array().exp().sum();
  check(state, sum / exp_of(T(0), shift), expected, 1e-5 * expected);
  state.counters["exp/s"] =
      benchmark::Counter(static_cast<double>(count), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(exponentials<float>);
BENCHMARK(exponentials<double>);

template <class T>
void logits_fold(benchmark::State& state) {
  const Sample<T> sample(state.range(0), state.range(1));
  Matrix<T> out(state.range(0), state.range(0));
  for (auto _ : state) {
    attention_logits<T>(sample.logits(), output_of(out), one_thread);
  }
  check(state, static_cast<double>(out(5, 7)), sample.logit(5, 7), 1e-4);
  count_products(state);
}
BENCHMARK(logits_fold<float>)->Apply(sizes);

template <class T>
void matrix_fold(benchmark::State& state) {
  const Sample<T> sample(state.range(0), state.range(1));
  Matrix<T> out(state.range(0), state.range(0));
  for (auto _ : state) {
    attention_matrix<T>(sample.logits(), output_of(out), one_thread);
  }
  check(state, static_cast<double>(out.row(9).sum()), 1, 1e-4);
  count_products(state);
}
BENCHMARK(matrix_fold<float>)->Apply(sizes);

template <class T>
void values_fold(benchmark::State& state) {
  const Sample<T> sample(state.range(0), state.range(1));
  const Matrix<T> ones = Matrix<T>::Ones(state.range(0), state.range(1));
  Matrix<T> out(ones.rows(), ones.cols());
  for (auto _ : state) {
    attention_apply<T>(sample.logits(), heads_of(ones), output_of(out), one_thread);
  }
  check(state, static_cast<double>(out(3, 0)), 1, 1e-4);
  count_products(state, 2);
}
BENCHMARK(values_fold<float>)->Apply(sizes);

template <class T>
void topk_fold(benchmark::State& state) {
  const Index n = state.range(0), kept = 32;
  const Sample<T> sample(n, state.range(1));
  Matrix<Offset> columns(n, kept);
  Matrix<T> weights(n, kept);
  for (auto _ : state) {
    attention_topk<T>(sample.logits(), kept, output_of(columns), output_of(weights), one_thread);
  }
  double largest = -1e300;
  for (Index j = 0; j < n; ++j) largest = std::max(largest, sample.logit(4, j));
  check(state, sample.logit(4, columns(4, 0)), largest, 1e-4);
  count_products(state);
}
BENCHMARK(topk_fold<float>)->Apply(sizes);

template <class T>
void certificate_fold(benchmark::State& state) {
  const Sample<T> sample(state.range(0), state.range(1));
  const OwnedTarget pattern = four_keys(state.range(0));
  for (auto _ : state) {
    const CertificateRows rows =
        certify_logits(pattern.view(), sample.logits(), {}, {}, one_thread);
    if (rows.holds()) state.SkipWithError("a certificate of random numbers");
  }
  count_products(state);
}
BENCHMARK(certificate_fold<float>)->Apply(sizes);

// A step of the learned method, scans and gradients included.
void learned_step(benchmark::State& state) {
  const OwnedTarget pattern = four_keys(state.range(0));
  LearnedOptions options;
  options.dim = state.range(1);
  options.max_steps = 50;
  Index steps = 0;
  for (auto _ : state) steps += fit_learned(pattern.view(), {}, options, one_thread).steps;
  if (steps == 0) state.SkipWithError("no steps");
  state.counters["s/step"] =
      benchmark::Counter(static_cast<double>(steps),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(learned_step)->Args({2048, 8})->Unit(benchmark::kMillisecond);

// The loss of a head against the attention of another, its gradient and its curvature.
template <class T>
void soft_gradient(benchmark::State& state) {
  const Sample<T> wide(state.range(0), 64), head(state.range(0), state.range(1));
  SoftTarget<T> target;
  target.attention = wide.logits();
  double loss = 0;
  for (auto _ : state) {
    loss = soft_loss<T>(target, {}, heads_of(head.q), heads_of(head.k), one_thread).loss;
  }
  if (!(loss > 0)) state.SkipWithError("a wrong answer");
}
BENCHMARK(soft_gradient<float>)->Args({2048, 8})->Args({2048, 16})->Unit(benchmark::kMillisecond);

}  // namespace
