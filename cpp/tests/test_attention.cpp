// Compares each fold with the exact softmax of the logits that the stream gives.
#include <numeric>

#include "check.hpp"
#include "headfit/simd/write_row.hpp"
#include "problem.hpp"

using namespace headfit;
using namespace headfit::test;

namespace {

using Real = long double;

// The largest errors that are allowed, in units in the last place.
constexpr double softmax_ulps = 4;
constexpr double topk_ulps = 4;

// The exact weights of a row of logits and a sink.
template <class T>
std::vector<Real> softmax(const Stack<T>& logits, Index h, Index i, Real sink = -infinity) {
  std::vector<Real> w(static_cast<std::size_t>(logits.cols));
  Real max = -std::numeric_limits<Real>::infinity();
  for (Index j = 0; j < logits.cols; ++j) max = std::max<Real>(max, logits.at(h, i, j));
  if (max > -infinity) max = std::max(max, sink);
  Real sum = max > -infinity ? std::exp(sink - max) : Real(0);
  for (Index j = 0; j < logits.cols; ++j) {
    const Real e = max > -infinity ? std::exp(Real(logits.at(h, i, j)) - max) : Real(0);
    sum += w[static_cast<std::size_t>(j)] = e;
  }
  for (Real& x : w) x = sum > 0 ? x / sum : x;
  return w;
}

template <class T>
double ulps(T got, Real exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  const Real unit = std::max<Real>(std::numeric_limits<T>::denorm_min(),
                                   std::ldexp(Real(1), exponent - std::numeric_limits<T>::digits));
  return static_cast<double>(std::abs(Real(got) - exact) / unit);
}

template <class T>
Stack<T> logits_of(const Problem<T>& p) {
  const LogitSource<T> source = p.source();
  Stack<T> logits(p.heads, source.row_count(), p.m);
  attention_logits(source, logits.out(), {1, {}});
  return logits;
}

// What the folds are compared with. Weights and orders stand head by head, row by row.
template <class T>
struct Exact {
  Stack<T> logits;
  std::vector<std::vector<Real>> key_weights;  // without a sink
  std::vector<std::vector<Real>> sorted;       // the same, from the largest down
  std::vector<Real> entropy;                   // of the key weights
  std::vector<std::vector<Real>> weights;      // with the sinks of the problem
  std::vector<std::vector<Index>> order;       // of the columns, from the largest logit down

  explicit Exact(const Problem<T>& p) : logits(logits_of(p)), key_weights(weights_of(p)) {
    for (Index h = 0; h < p.heads; ++h) {
      for (Index i = 0; i < logits.rows; ++i) {
        std::vector<Real>& w = sorted.emplace_back(key_weights[order.size()]);
        std::sort(w.begin(), w.end(), std::greater<Real>());
        Real& sum = entropy.emplace_back(0);
        for (const Real x : w) sum -= x > 0 ? x * std::log(x) : 0;
        std::vector<Index>& columns = order.emplace_back(static_cast<std::size_t>(p.m));
        std::iota(columns.begin(), columns.end(), Index(0));
        std::stable_sort(columns.begin(), columns.end(),
                         [&](Index a, Index b) { return logits.at(h, i, a) > logits.at(h, i, b); });
      }
    }
  }

  std::vector<std::vector<Real>> weights_of(const Problem<T>& p) const {
    std::vector<std::vector<Real>> found;
    for (Index h = 0; h < p.heads; ++h) {
      const Real sink = p.source().sink(h);
      for (Index i = 0; i < logits.rows; ++i) found.push_back(softmax(logits, h, i, sink));
    }
    return found;
  }
};

template <class T>
void check_matrix(const Problem<T>& p, const Exact<T>& exact, const std::string& where) {
  const LogitSource<T> source = p.source();
  for (const int threads : {1, 2, 3}) {
    Stack<T> out(p.heads, source.row_count(), p.m, T(-7));
    attention_matrix(source, out.out(), {threads, {}});
    for (std::size_t x = 0; x < out.data.size(); ++x) {
      const Real want = exact.weights[x / std::size_t(p.m)][x % std::size_t(p.m)];
      CHECK_THAT(ulps(out.data[x], want) <= softmax_ulps, where, " at ", x, ": ", out.data[x],
                 " for ", want);
    }
  }
}

template <class T>
void check_apply(const Problem<T>& p, const Exact<T>& exact, const std::string& where,
                 Numbers& numbers) {
  const LogitSource<T> source = p.source();
  for (const Index width : {1, 5, 33}) {
    const auto v = Stack<T>::random(p.heads / p.group, p.m, width, numbers);
    Stack<T> first(p.heads, source.row_count(), width, T(-7));
    attention_apply(source, v.view(), first.out(), {1, {}});
    for (const int threads : {2, 3}) {
      Stack<T> again(p.heads, source.row_count(), width, T(-8));
      attention_apply(source, v.view(), again.out(), {threads, {}});
      CHECK_THAT(again.data == first.data, where, ", ", threads, " threads");
    }
    for (Index h = 0; h < p.heads; ++h) {
      for (Index i = 0; i < first.rows; ++i) {
        const auto& w = exact.weights[std::size_t(h * first.rows + i)];
        for (Index c = 0; c < width; ++c) {
          Real want = 0, size = 0;
          for (Index j = 0; j < p.m; ++j) {
            const Real term = w[std::size_t(j)] * Real(v.at(h / p.group, j, c));
            want += term;
            size += std::abs(term);
          }
          // Weights far below the sink underflow.
          const Real bound = Real(p.m + 16) * (std::numeric_limits<T>::epsilon() * size +
                                               std::numeric_limits<T>::min());
          CHECK_THAT(std::abs(Real(first.at(h, i, c)) - want) <= bound, where, " row ", i);
        }
      }
    }
  }
}

template <class T>
void check_topk(const Problem<T>& p, const Exact<T>& exact, const std::string& where) {
  const LogitSource<T> source = p.source();
  for (const Index k : {Index(1), Index(3), p.m}) {
    if (k > p.m || k < 1) continue;
    for (const int threads : {1, 3}) {
      Stack<Offset> columns(p.heads, source.row_count(), k, -9);
      Stack<T> weights(p.heads, source.row_count(), k, T(-9));
      Stack<Offset> same(p.heads, source.row_count(), k, -9);
      Stack<T> scores(p.heads, source.row_count(), k, T(-9));
      attention_topk(source, k, columns.out(), weights.out(), {threads, {}});
      attention_topk_logits(source, k, same.out(), scores.out(), {threads, {}});
      CHECK_THAT(same.data == columns.data, where);
      for (Index h = 0; h < p.heads; ++h) {
        for (Index i = 0; i < columns.rows; ++i) {
          const auto row = std::size_t(h * columns.rows + i);
          for (Index place = 0; place < k; ++place) {
            const Index col = exact.order[row][std::size_t(place)];
            const T logit = exact.logits.at(h, i, col);
            const bool exists = logit > -infinity;
            CHECK_THAT(columns.at(h, i, place) == (exists ? col : -1), where, " row ", i);
            const Real want = exists ? exact.weights[row][std::size_t(col)] : 0;
            const T score = exists ? logit : -T(infinity);
            CHECK_THAT(scores.at(h, i, place) == score, where, " row ", i);
            CHECK_THAT(ulps(weights.at(h, i, place), want) <= topk_ulps, where, " row ", i, ": ",
                       weights.at(h, i, place), " for ", want);
          }
        }
      }
    }
  }
}

template <class T>
void check_stats(const Problem<T>& p, const Exact<T>& exact, const std::vector<double>& shares,
                 const std::string& where) {
  const LogitSource<T> source = p.source();
  const auto size = static_cast<std::size_t>(p.heads * source.row_count());
  for (const int threads : {1, 3}) {
    std::vector<double> entropy(size, -9), max_weight(size, -9), log_sum(size, -9);
    std::vector<double> key_mass(size, -9);
    std::vector<Offset> counts(size * shares.size(), -9);
    attention_stats(source,
                    {entropy.data(), max_weight.data(), log_sum.data(), counts.data(), shares,
                     key_mass.data()},
                    {threads, {}});
    const double near = 64 * double(std::numeric_limits<T>::epsilon());
    for (std::size_t r = 0; r < size; ++r) {
      const auto& whole = exact.weights[r];
      const Real mass = std::accumulate(whole.begin(), whole.end(), Real(0));
      CHECK_THAT(std::abs(double(mass) - key_mass[r]) <= near, where, " row ", r);
      const Real largest = whole.empty() ? 0 : *std::max_element(whole.begin(), whole.end());
      CHECK_THAT(std::abs(double(largest) - max_weight[r]) <= near, where, " row ", r);
      // The rest is about the keys alone.
      CHECK_THAT(std::abs(double(exact.entropy[r]) - entropy[r]) <= near, where, " row ", r);
      const std::vector<Real>& w = exact.sorted[r];
      const Real most = w.empty() ? 0 : w.front();
      CHECK_THAT((most > 0) == std::isfinite(log_sum[r]), where, " row ", r);
      for (std::size_t s = 0; s < shares.size(); ++s) {
        const Offset got = counts[r * shares.size() + s];
        if (most == 0) {
          CHECK_THAT(got == 0, where, " row ", r);
          continue;
        }
        // This many of the largest weights reach the share, and one fewer do not, up to rounding.
        const auto sum_of = [&](Offset c) {
          const auto count = std::clamp<Offset>(c, 0, Offset(w.size()));
          return std::accumulate(w.begin(), w.begin() + count, Real(0));
        };
        CHECK_THAT(got >= 1 && got <= p.m && sum_of(got) >= shares[s] - near &&
                       sum_of(got - 1) < shares[s] + near,
                   where, " row ", r, ": ", got, " keys for ", shares[s]);
      }
    }
  }
}

// Compares all folds on all problems, without sinks and with. The exact weights, which take most of
// the time, are computed once for all folds.
template <class T>
void check_folds() {
  Numbers numbers(2);
  for_all_problems<T>([&](Problem<T>& p, const std::string& about) {
    Exact<T> exact(p);
    for (const auto& sinks :
         {std::vector<double>{}, {0.5, -infinity}, {-60.5, 60.25}, {3e38, 2100}}) {
      p.sinks = sinks;
      exact.weights = sinks.empty() ? exact.key_weights : exact.weights_of(p);
      const std::string where =
          sinks.empty() ? about : text(about, ", sinks ", sinks[0], " ", sinks[1]);
      check_matrix(p, exact, where);
      check_apply(p, exact, where, numbers);
      check_topk(p, exact, where);
      // The largest share decides which weights are too light to look at; 1 has its own test.
      check_stats(p, exact, {0.1, 0.5, 0.9}, where);
      check_stats(p, exact, {0.9998, 0.3}, where);
      check_stats(p, exact, {0.99999, 0.3}, where);
    }
  });
}

}  // namespace

TEST(folds_float) { check_folds<float>(); }
TEST(folds_double) { check_folds<double>(); }

// A result larger than the caches is written past them, to rows with any alignment. It must equal
// the result for a few of its rows, which is written through the caches.
template <class T>
void check_large_matrix() {
  const Index n = 1100, m = 2001, stride = m + 3;
  CHECK(n * m * Index(sizeof(T)) > simd::streamed_bytes);
  Numbers numbers(13);
  for (const bool causal : {false, true}) {
    Problem<T> p(1, 1, n, m, 6, numbers);
    if (causal) p.mask.right = 0;
    for (const Index shift : {0, 1}) {
      std::vector<T> out(std::size_t(n * stride + shift), T(-7));
      attention_matrix(p.source(), {out.data() + shift, n * stride, stride}, {2, {}});
      std::vector<T> fresh(out.size(), T(-7));
      attention_matrix(p.source(), {fresh.data() + shift, n * stride, stride, true}, {2, {}});
      CHECK(fresh == out);
      p.rows.clear();
      for (Index i = shift; i < n; i += 10) p.rows.push_back(i);
      p.some_rows = true;
      Stack<T> some(1, Index(p.rows.size()), m);
      attention_matrix(p.source(), some.out(), {1, {}});
      p.some_rows = false;
      for (Index place = 0; place < some.rows; ++place) {
        const T* row = out.data() + shift + p.rows[std::size_t(place)] * stride;
        CHECK_THAT(std::equal(row, row + m, &some.at(0, place, 0)), "row ",
                   p.rows[std::size_t(place)]);
        CHECK(std::all_of(row + m, row + stride, [](T x) { return x == T(-7); }));
      }
    }
  }
}

TEST(large_matrix_float) { check_large_matrix<float>(); }
TEST(large_matrix_double) { check_large_matrix<double>(); }

TEST(a_full_share_counts_some_keys_and_never_more_than_there_are) {
  Numbers numbers(12);
  Problem<float> p(1, 1, 200, 999, 8, numbers);
  std::vector<double> entropy(200), max_weight(200), log_sum(200);
  std::vector<Offset> counts(200);
  const std::vector<double> shares = {1.0};
  attention_stats(p.source(),
                  {entropy.data(), max_weight.data(), log_sum.data(), counts.data(), shares},
                  {1, {}});
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  CHECK_THAT(*least > 0 && *most <= 999, *least, *most);
}

TEST(values_whose_average_is_finite_do_not_overflow) {
  Stack<float> q(1, 3, 2, 0.5f), k(1, 40, 2, 0.5f), v(1, 40, 3, 3e38f), out(1, 3, 3);
  LogitSource<float> source;
  source.q = q.view();
  source.k = k.view();
  attention_apply(source, v.view(), out.out(), {1, {}});
  for (const float x : out.data) CHECK_THAT(std::isfinite(x), x);
}

template <class T>
void check_4_ulp() {
  Numbers numbers(30);
  Problem<T> p(1, 1, 4000, 63, 2, numbers);
  for (T& x : p.q.data) x *= 3;
  const Stack<T> logits = logits_of(p);
  Stack<T> out(1, 4000, 63);
  attention_matrix(p.source(), out.out(), {2, {}});
  double worst = 0;
  for (Index i = 0; i < 4000; ++i) {
    const auto want = softmax(logits, 0, i);
    for (Index j = 0; j < 63; ++j) {
      worst = std::max(worst, ulps(out.at(0, i, j), want[std::size_t(j)]));
    }
  }
  CHECK_THAT(worst <= 4, worst, " ulp");
}

TEST(softmax_within_4_ulp_float) { check_4_ulp<float>(); }
TEST(softmax_within_4_ulp_double) { check_4_ulp<double>(); }

TEST(topk_of_large_logits) {
  Stack<double> q(1, 1, 1, 1.0), k(1, 300, 1), weights(1, 1, 300);
  Stack<Offset> columns(1, 1, 300);
  Numbers numbers(31);
  for (double& x : k.data) x = 2000 - 3 * std::abs(numbers.next());
  LogitSource<double> source;
  source.q = q.view();
  source.k = k.view();
  attention_topk(source, 300, columns.out(), weights.out(), {1, {}});
  const auto want = softmax(Stack<double>{1, 1, 300, 0, k.data}, 0, 0);
  double worst = 0;
  for (Index c = 0; c < 300; ++c) {
    worst = std::max(worst, ulps(weights.at(0, 0, c), want[std::size_t(columns.at(0, 0, c))]));
  }
  CHECK_THAT(worst <= 4, worst, " ulp");
}

// A running sum whose shift moves from 2^2885 to exp(2050) or back.
template <class T>
void check_steps(double low, double high) {
  Stack<T> q(1, 1, 1, T(1)), k(1, 1024, 1), v(1, 1024, 1, T(1)), out(1, 1, 1), weights(1, 1, 1);
  Stack<Offset> columns(1, 1, 1);
  for (Index j = 0; j < 1024; ++j) k.at(0, j, 0) = static_cast<T>(j < 512 ? low : high);
  LogitSource<T> source;
  source.q = q.view();
  source.k = k.view();
  attention_apply(source, v.view(), out.out(), {1, {}});
  attention_topk(source, 1, columns.out(), weights.out(), {1, {}});
  CHECK_THAT(std::abs(out.data[0] - 1) < 1e-4, low, " to ", high, ": ", out.data[0]);
  CHECK_THAT(std::abs(weights.data[0] * 512 - 1) < 1e-4, low, " to ", high, ": ", weights.data[0]);
}

TEST(steps_between_tiles) {
  for (const auto& [low, high] : {std::pair{-3000.0, 5.0},
                                  {200.0, 300.0},
                                  {-300.0, -200.0},
                                  {-1e4, 0.0},
                                  {-1e4, 1e4},
                                  {1e30, 2e30}}) {
    check_steps<float>(low, high);
    check_steps<double>(low, high);
  }
}

TEST(far_steps_between_tiles) {
  for (const auto& [low, high] : {std::pair{2000.0, 2050.0}, {-3000.0, -1000.0}, {2000.0, 1e4}}) {
    check_steps<float>(low, high);
    check_steps<double>(low, high);
  }
}

TEST(large_logits) {
  for (const double size : {100.0, 1e4, 1e30}) {
    Numbers numbers(8);
    Problem<float> p(1, 1, 40, 300, 2, numbers);
    for (float& x : p.q.data) x *= static_cast<float>(size);
    const Stack<float> logits = logits_of(p);
    Stack<float> out(1, 40, 300);
    attention_matrix(p.source(), out.out(), {2, {}});
    for (Index i = 0; i < 40; ++i) {
      const auto want = softmax(logits, 0, i);
      for (Index j = 0; j < 300; ++j) {
        CHECK_THAT(ulps(out.at(0, i, j), want[std::size_t(j)]) <= softmax_ulps, size, " row ", i,
                   " column ", j, ": ", out.at(0, i, j), " for ", want[std::size_t(j)]);
      }
    }
  }
}

TEST(bad_k_and_bad_values) {
  Numbers numbers(4);
  Problem<float> p(1, 1, 4, 5, 3, numbers);
  Stack<Offset> columns(1, 4, 6);
  Stack<float> weights(1, 4, 6), v(1, 4, 2), out(1, 4, 2);
  for (const Index k : {0, 6}) {
    CHECK_THROWS(InputError, "k must lie in 1 ... 5",
                 attention_topk(p.source(), k, columns.out(), weights.out(), {1, {}}));
    CHECK_THROWS(InputError, "k must lie in 1 ... 5",
                 attention_topk_logits(p.source(), k, columns.out(), weights.out(), {1, {}}));
  }
  CHECK_THROWS(InputError, "V must have",
               attention_apply(p.source(), v.view(), out.out(), {1, {}}));
  Stack<float> wild(1, 5, 2);
  wild.at(0, 3, 1) = std::nanf("");
  CHECK_THROWS(NonFiniteError, "V must be finite; got nan at row 3, column 1",
               attention_apply(p.source(), wild.view(), out.out(), {1, {}}));
  std::vector<double> x(4);
  const std::vector<double> shares = {0.0};
  CHECK_THROWS(InputError, "shares",
               attention_stats(p.source(), {x.data(), x.data(), x.data(), nullptr, shares},
                               {1, {}}));
}
