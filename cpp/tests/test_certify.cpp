// Certificates of cases with known answers, and of others compared with a slow scan.
#include <map>
#include <numeric>
#include <random>

#include "check.hpp"
#include "headfit/certify/certificate.hpp"
#include "headfit/certify/operands.hpp"
#include "headfit/certify/product_scores.hpp"
#include "headfit/certify/rounding.hpp"
#include "headfit/certify/selection.hpp"
#include "headfit/logits/stream.hpp"
#include "headfit/projection/projection.hpp"
#include "problem.hpp"
#include "sample.hpp"

using namespace headfit;
using namespace headfit::test;

namespace {

OwnedTarget diagonal(Index n) {
  OwnedTarget t;
  for (Index i = 0; i < n; ++i) t.row({static_cast<Column>(i)}, {1});
  return t;
}

template <class T>
LogitSource<T> source_of(const Matrix<T>& q, const Matrix<T>& k, double scale,
                         const Mask& mask = {}) {
  LogitSource<T> s;
  s.q = {q.data(), 1, q.rows(), q.cols(), q.size(), q.cols()};
  s.k = {k.data(), 1, k.rows(), k.cols(), k.size(), k.cols()};
  s.scale = scale;
  s.mask = mask;
  return s;
}

template <class T>
Heads<double> heads_as_double(const Matrix<T>& x) {
  return {x.data(), 1, x.rows(), x.cols(), x.size(), x.cols()};
}

Mask causal() {
  Mask mask;
  mask.right = 0;
  return mask;
}

const CertifyOptions with_mass{.mass = true};

double uniform(std::mt19937_64& random) { return std::generate_canonical<double, 53>(random); }

}  // namespace

TEST(a_diagonal_head) {
  // Logits: 4 on the diagonal, 0 elsewhere; leak = exp(-4) in every row.
  const Matrix<double> q = 4 * Matrix<double>::Identity(5, 5), k = Matrix<double>::Identity(5, 5);
  const OwnedTarget t = diagonal(5);
  const auto rows = certify_logits(t.view(), source_of(q, k, 1.0), {0.05, 0.1}, with_mass, {2, {}});
  const double want = std::exp(-4.0);
  for (Index i = 0; i < 5; ++i) {
    CHECK(rows.verdict[std::size_t(i)] == Verdict::holds);
    CHECK_THAT(rows.leak[i] >= want && rows.leak[i] < want * (1 + 1e-12), rows.leak[i]);
    CHECK(rows.distortion[i] == 0);
    const double stray = 4 * want / (1 + 4 * want);
    CHECK(std::abs(rows.stray[i] - stray) < 1e-14);
    CHECK(std::abs(rows.tv[i] - stray) < 1e-14);
    CHECK(rows.weakest_column[std::size_t(i)] == i);
    CHECK(rows.leak_column[std::size_t(i)] == (i == 0 ? 1 : 0));
  }
  CHECK(rows.q_norm >= 4 && rows.q_norm < 4.0001);
  CHECK(rows.k_norm >= 1 && rows.k_norm < 1.0001);
  CHECK(rows.max_logit >= 4 && rows.max_logit < 4 + 1e-5);
  CHECK(rows.rescanned == 0);
}

TEST(tolerances_on_both_sides) {
  const Matrix<float> q = 4 * Matrix<float>::Identity(3, 3), k = Matrix<float>::Identity(3, 3);
  const OwnedTarget t = diagonal(3);
  const double leak = std::exp(-4.0);
  const auto verdict = [&](double tolerance) {
    return certify_logits(t.view(), source_of(q, k, 1.0), {tolerance, 0.1}, {}, {1, {}}).verdict[1];
  };
  CHECK(verdict(leak * (1 + 1e-9)) == Verdict::holds);
  CHECK(verdict(leak * (1 - 1e-9)) == Verdict::fails);
  CHECK(verdict(leak) != Verdict::fails);
}

TEST(distortion_of_two_keys) {
  // The target asks for equal logits in row 0, and the head's differ by log 3.
  OwnedTarget t;
  t.row({0, 1}, {0.5, 0.5}).row({1}, {1}).row({2}, {1});
  Matrix<double> q = Matrix<double>::Zero(3, 3), k = Matrix<double>::Identity(3, 3);
  q.row(0) << 10 + std::log(3.0), 10, 0;
  q.row(1) << 0, 10, 0;
  q.row(2) << 0, 0, 10;
  const auto rows = certify_logits(t.view(), source_of(q, k, 1.0), {0.01, 2.1}, with_mass, {1, {}});
  CHECK_THAT(std::abs(rows.distortion[0] - 2) < 1e-12 && rows.distortion[0] >= 2 - 1e-15,
             rows.distortion[0]);
  CHECK(rows.highest_column[0] == 0);
  CHECK(rows.lowest_column[0] == 1);
  CHECK(rows.verdict[0] == Verdict::holds);
  const auto strict =
      certify_logits(t.view(), source_of(q, k, 1.0), {0.01, 1.9}, with_mass, {1, {}});
  CHECK(strict.verdict[0] == Verdict::fails);
  CHECK(strict.verdict[1] == Verdict::holds);
}

TEST(masks_hide_leaks) {
  // The upper triangle is large, but the causal mask leaves it out.
  Matrix<double> q = 8 * Matrix<double>::Identity(4, 4), k = Matrix<double>::Identity(4, 4);
  q(0, 3) = 20;
  const OwnedTarget t = diagonal(4);
  const Tolerances tolerances{0.05, 0.1};
  const auto open = certify_logits(t.view(), source_of(q, k, 1.0), tolerances, with_mass, {1, {}});
  CHECK(open.verdict[0] == Verdict::fails);
  CHECK(open.leak_column[0] == 3);
  const auto closed =
      certify_logits(t.view(), source_of(q, k, 1.0, causal()), tolerances, with_mass, {1, {}});
  CHECK(closed.verdict[0] == Verdict::holds);
  CHECK(closed.leak[0] == 0);
  CHECK(closed.leak_column[0] == -1);
  CHECK(closed.stray[0] == 0);
}

TEST(a_close_call_is_rescanned_and_never_passed_wrongly) {
  // Logits differ from the tolerance by less than float can tell, on either side.
  for (const double beyond : {-1e-7, -1e-9, 1e-9, 1e-7}) {
    const Index n = 30, d = 64;
    Numbers numbers(6);
    Matrix<float> q = Matrix<float>::Zero(n, d), k = Matrix<float>::Zero(n, d);
    for (Index i = 0; i < n; ++i) {
      k(i, i) = 1;
      for (Index j = 30; j < d; ++j) k(i, j) = static_cast<float>(numbers.next());
    }
    q = 3.25f * k;
    const OwnedTarget t = diagonal(n);
    double worst = -infinity;  // the largest leak in exact enough arithmetic
    for (Index i = 0; i < n; ++i) {
      const auto s = [&](Index j) -> long double {
        long double sum = 0;
        for (Index p = 0; p < d; ++p) sum += (long double)q(i, p) * (long double)k(j, p);
        return sum;
      };
      for (Index j = 0; j < n; ++j) {
        if (j != i) worst = std::max(worst, double(std::exp(s(j) - s(i))));
      }
    }
    const Tolerances tolerances{worst * (1 + beyond), 0.1};
    const auto rows =
        certify_logits(t.view(), source_of(q, k, 1.0), tolerances, with_mass, {2, {}});
    const bool all = std::all_of(rows.verdict.begin(), rows.verdict.end(),
                                 [](Verdict v) { return v == Verdict::holds; });
    CHECK_THAT(all == (beyond > 0), beyond);
    CHECK(rows.rescanned >= 1);
    CHECK(rows.leak.maxCoeff() >= worst * (1 - 1e-15));
  }
}

template <class T>
void check_against_scan(const Mask& mask, bool lower) {
  const Index n = 150, d = 9;
  Numbers numbers(21);
  OwnedTarget t;
  for (Index i = 0; i < n; ++i) {
    const Index other = lower ? i / 2 : (i * 7 + 3) % n;
    if (other == i) {
      t.row({static_cast<Column>(i)}, {1});
    } else {
      t.row({static_cast<Column>(std::min(i, other)), static_cast<Column>(std::max(i, other))},
            {0.25, 0.75});
    }
  }
  Matrix<T> q(n, d), k(n, d);
  for (Index i = 0; i < q.size(); ++i) {
    q.data()[i] = static_cast<T>(2 * numbers.next());
    k.data()[i] = static_cast<T>(2 * numbers.next());
  }
  const double scale = 0.7;
  const auto source = source_of(q, k, scale, mask);
  const auto rows = certify_logits(t.view(), source, {0.5, 3}, with_mass, {3, {}});
  for (Index i = 0; i < n; ++i) {
    std::vector<long double> s(std::size_t(n), -infinity), a(std::size_t(n), 0);
    for (Index j = 0; j < n; ++j) {
      if (!mask.allows(0, i, j, n, n)) continue;
      long double sum = 0;
      for (Index p = 0; p < d; ++p) sum += (long double)q(i, p) * (long double)k(j, p);
      s[std::size_t(j)] = sum * scale;
    }
    const auto columns = t.view().row_columns(i);
    const auto weights = t.view().row_weights(i);
    for (std::size_t p = 0; p < columns.size(); ++p) a[std::size_t(columns[p])] = weights[p];
    long double off = -infinity, on = infinity, high = -infinity, low = infinity, total = 0;
    for (std::size_t j = 0; j < s.size(); ++j) {
      total += std::exp(s[j]);
      if (a[j] > 0) {
        on = std::min(on, s[j]);
        high = std::max(high, s[j] - std::log(a[j]));
        low = std::min(low, s[j] - std::log(a[j]));
      } else {
        off = std::max(off, s[j]);
      }
    }
    long double tv = 0, stray = 0;
    for (std::size_t j = 0; j < s.size(); ++j) {
      tv += std::abs(std::exp(s[j]) / total - a[j]) / 2;
      if (a[j] == 0) stray += std::exp(s[j]) / total;
    }
    const double leak = double(std::exp(off - on)), distortion = double(std::expm1(high - low));
    const double near = 200 * double(std::numeric_limits<T>::epsilon());
    CHECK_THAT(rows.leak[i] >= leak * (1 - 1e-14) && rows.leak[i] <= leak * (1 + near) + 1e-300,
               "row ", i, ": ", rows.leak[i], " for ", leak);
    CHECK_THAT(rows.distortion[i] >= distortion - 1e-12 &&
                   rows.distortion[i] <= distortion * (1 + near) + 1e-12,
               "row ", i, ": ", rows.distortion[i], " for ", distortion);
    CHECK_THAT(std::abs(rows.tv[i] - double(tv)) < near, "row ", i);
    CHECK_THAT(std::abs(rows.stray[i] - double(stray)) < near, "row ", i);
    const bool holds = leak <= 0.5 && distortion <= 3;
    CHECK_THAT(rows.verdict[std::size_t(i)] == (holds ? Verdict::holds : Verdict::fails), "row ",
               i);
  }
  // The fold that only compares logits finds the same.
  const auto light = certify_logits(t.view(), source, {0.5, 3}, {}, {2, {}});
  CHECK(light.leak == rows.leak);
  CHECK(light.leak_column == rows.leak_column);
  CHECK(light.verdict == rows.verdict);
  CHECK(light.max_logit == rows.max_logit);
}

TEST(random_heads_float) { check_against_scan<float>({}, false); }
TEST(random_heads_double) { check_against_scan<double>({}, false); }
TEST(random_heads_causal) { check_against_scan<float>(causal(), true); }

TEST(threads_do_not_matter) {
  const Index n = 200;
  const OwnedTarget t = regular_target(n, 3, 2);
  Matrix<float> q(n, 64), k(n, 64);
  project_identity<float>(t.view(), {0.05, 0.1}, {Sketch::gaussian, 3, 1}, q, k, {1, {}});
  const auto one = certify_logits(t.view(), source_of(q, k, 1.0), {0.5, 5}, with_mass, {1, {}});
  for (const int threads : {2, 3}) {
    const auto rows =
        certify_logits(t.view(), source_of(q, k, 1.0), {0.5, 5}, with_mass, {threads, {}});
    CHECK(rows.leak == one.leak);
    CHECK(rows.distortion == one.distortion);
    CHECK(rows.tv == one.tv);
    CHECK(rows.verdict == one.verdict);
    CHECK(rows.rescanned == one.rescanned);
  }
}

// A scan of some rows at a time, and then one in double of the rows that are left, find what one
// call finds. Sums over a window begin at a column that depends on the block of the row.
TEST(parts_of_the_rows_are_certified_alike) {
  const Index n = 2 * row_granule + 100;
  OwnedTarget t;
  for (Index i = 0; i < n; ++i) t.row({static_cast<Column>(i)}, {1});
  Mask window;
  window.left = 150;
  window.right = 20;
  Numbers numbers(5);
  Matrix<float> q(n, 8), k(n, 8);
  for (auto* x : {&q, &k}) {
    *x = Matrix<float>::NullaryExpr(n, 8, [&] { return static_cast<float>(2 * numbers.next()); });
  }
  q += k;  // so that the diagonal is among the largest logits
  const Tolerances tolerances{0.5, 5};
  auto source = source_of(q, k, 1.0, window);
  // Errors of this size leave some rows undecided.
  const std::vector<double> errors(static_cast<std::size_t>(n), 0.02);
  CertifyOptions options{.errors = {errors, errors}, .mass = true};
  const auto all = certify_logits(t.view(), source, tolerances, options, {2, {}});
  CHECK(all.rescanned > 0);

  double rounding_bound = 0;
  std::vector<Index> left;
  const auto check = [&](const std::vector<Index>& rows, bool is_last) {
    source.rows = std::span<const Index>(rows);
    const auto part = certify_logits(t.view(), source, tolerances, options, {1, {}});
    rounding_bound = std::max(rounding_bound, part.rounding_bound);
    for (const Index i : rows) {
      const auto at = static_cast<std::size_t>(i);
      if (!is_last && part.verdict[at] == Verdict::undecided) {
        left.push_back(i);
        continue;
      }
      CHECK(part.leak[i] == all.leak[i]);
      CHECK(part.tv[i] == all.tv[i]);
      CHECK(part.stray[i] == all.stray[i]);
      CHECK(part.largest_logit[i] == all.largest_logit[i]);
      CHECK(part.leak_column[at] == all.leak_column[at]);
      CHECK(part.verdict[at] == all.verdict[at]);
    }
    CHECK(part.q_norm == all.q_norm && part.k_norm == all.k_norm);
  };
  options.passes = Passes::first;
  for (Index first = 0; first < n; first += row_granule) {
    std::vector<Index> rows(static_cast<std::size_t>(std::min(row_granule, n - first)));
    std::iota(rows.begin(), rows.end(), first);
    check(rows, false);
  }
  CHECK(rounding_bound == all.rounding_bound);
  CHECK(static_cast<Index>(left.size()) == all.rescanned);
  options.passes = Passes::in_double;
  check(left, true);
}

TEST(given_matrices) {
  OwnedTarget t;
  t.row({0, 1}, {0.5, 0.5}).row({1}, {1});
  Matrix<double> m(2, 2);
  m << 0.6, 0.4, 0.25, 0.75;
  const Heads<double> view{m.data(), 1, 2, 2, 0, 2};
  const auto rows = certify_matrix<double>(t.view(), view, {0.4, 0.6}, {1, {}});
  CHECK(rows.leak[0] == 0);
  CHECK_THAT(std::abs(rows.distortion[0] - 0.5) < 1e-14, rows.distortion[0]);
  CHECK_THAT(std::abs(rows.leak[1] - 1.0 / 3) < 1e-14, rows.leak[1]);
  CHECK(rows.verdict[0] == Verdict::holds && rows.verdict[1] == Verdict::holds);
  CHECK(std::abs(rows.tv[1] - 0.25) < 1e-15);
  CHECK(rows.stray[1] == 0.25);
  m(1, 1) = 0;  // a row fails if an entry on its support is 0
  const auto without = certify_matrix<double>(t.view(), view, {0.4, 0.6}, {1, {}});
  CHECK(without.verdict[1] == Verdict::fails);
  m(1, 1) = -1;
  CHECK_THROWS(NonFiniteError, "row 1, column 1",
               certify_matrix<double>(t.view(), view, {0.4, 0.6}, {1, {}}));
  m(1, 1) = 0.75;
  OwnedTarget lower;
  lower.row({0}, {1}).row({1}, {1});
  CHECK_THROWS(InputError, "0 where masked",
               certify_matrix<double>(lower.view(causal()), view, {0.4, 0.6}, {1, {}}));
}

TEST(bad_certificate_arguments) {
  const Matrix<double> q = Matrix<double>::Identity(3, 3);
  const OwnedTarget t = diagonal(3), small = diagonal(2);
  const auto with = [&](const OwnedTarget& target, Tolerances tolerances) {
    certify_logits(target.view(), source_of(q, q, 1.0), tolerances, with_mass, {1, {}});
  };
  CHECK_THROWS(InputError, "one row for each of the 2", with(small, {0.05, 0.1}));
  for_bad_tolerances([&](const Tolerances& bad) { with(t, bad); });
  const Heads<double> matrix{q.data(), 1, 3, 3, 9, 3};
  for_bad_tolerances(
      [&](const Tolerances& bad) { certify_matrix<double>(t.view(), matrix, bad, {1, {}}); });
  CHECK_THROWS(InputError, "max_logit must not be given for a matrix",
               certify_matrix<double>(t.view(), matrix, {0.05, 0.1, 9}, {1, {}}));
  CHECK_THROWS(InputError, "of the shape of A, 2 x 2; got 3 x 3",
               certify_matrix<double>(small.view(), matrix, {}, {1, {}}));
  const OwnedTarget outside = target_out_of_range(3);
  CHECK_THROWS(TargetError, "column 3 in row 2", with(outside, {}));
  CHECK_THROWS(TargetError, "column 3 in row 2",
               certify_matrix<double>(outside.view(), matrix, {}, {1, {}}));
  const auto changed = [&](const auto& change) {
    LogitSource<double> source = source_of(q, q, 1.0);
    change(source);
    certify_logits(t.view(), source, {0.05, 0.1}, with_mass, {1, {}});
  };
  const std::vector<double> numbers(9, 0.0);
  const std::vector<Index> others{0, 3};
  using Source = LogitSource<double>;
  const std::string reason = "takes no rotary positions and no sinks";
  CHECK_THROWS(InputError, reason, changed([&](Source& s) { s.q.rotary.table = numbers.data(); }));
  CHECK_THROWS(InputError, reason, changed([&](Source& s) { s.k.rotary.table = numbers.data(); }));
  const double sink = 1;
  CHECK_THROWS(InputError, reason, changed([&](Source& s) { s.sinks = &sink; }));
  CHECK_THROWS(InputError, "rows must lie in 0 ... 2; got 3",
               changed([&](Source& s) { s.rows = others; }));
}

TEST(input_errors_widen_the_statement) {
  // Errors of the keys alone widen the statement, and errors that do not fit are refused.
  const Matrix<double> q = 4 * Matrix<double>::Identity(3, 3), k = Matrix<double>::Identity(3, 3);
  const OwnedTarget t = diagonal(3);
  const auto verdict = [&](const std::vector<double>& q_error, const std::vector<double>& k_error) {
    const auto source = source_of(q, k, 1.0);
    return certify_logits(t.view(), source, {0.019, 0.1}, {{q_error, k_error}}, {1, {}}).verdict[0];
  };
  const std::vector<double> none, small(3, 1e-6), large(3, 0.5), few(2, 0.0);
  CHECK(verdict(none, none) == Verdict::holds);
  CHECK(verdict(small, small) == Verdict::holds);
  CHECK(verdict(large, small) == Verdict::undecided);
  CHECK(verdict(none, large) == Verdict::undecided);
  CHECK(verdict(large, none) == Verdict::undecided);
  CHECK(verdict({infinity, 0, 0}, none) == Verdict::undecided);
  CHECK_THROWS(InputError, "one for each of the 3 rows; got 2", verdict(few, none));
  CHECK_THROWS(InputError, "one for each of the 3 rows; got 2", verdict(none, few));
  CHECK_THROWS(InputError, "at least 0; got nan", verdict(none, {0, std::nan(""), 0}));
}

TEST(logits_that_a_format_cannot_hold) {
  const OwnedTarget t = diagonal(2);
  const auto verdict = [&](double on, double off) {
    Matrix<double> q = Matrix<double>::Identity(2, 2), k(2, 2);
    k << on, off, off, on;
    const auto source = source_of(q, k, 1.0);
    const CertifyOptions options{.kernel = {.logits = NumberFormat::float16()}, .mass = true};
    return certify_logits(t.view(), source, {0.05, 0.1}, options, {1, {}}).verdict[0];
  };
  CHECK(verdict(60000, 0) == Verdict::holds);
  CHECK(verdict(70000, 0) == Verdict::fails);      // NaN: exp(inf - inf)
  CHECK(verdict(70000, 80000) == Verdict::fails);
  CHECK(verdict(0, 70000) == Verdict::fails);
  CHECK(verdict(0, -70000) == Verdict::holds);     // exp(-inf) = 0
  CHECK(verdict(-70000, 0) == Verdict::fails);
  CHECK(verdict(65519.99, 0) == Verdict::holds);   // rounds to 65504
  CHECK(verdict(65520, 0) == Verdict::undecided);  // a tie, which is rounded to infinity
}

TEST(kernels_round_where_they_say) {
  // Eager code in bfloat16 makes 179 and 181 of .7 * 256 and .7 * 258.296875 (a tie may fall to 256
  // or 258, and 180.6 is rounded to 181).
  const Kernel eager{.float32 = true,
                     .product = NumberFormat::bfloat16(),
                     .logits = NumberFormat::bfloat16(),
                     .bias = NumberFormat::bfloat16()};
  const detail::LogitPath path(eager, 0.7, 0, 2);
  const detail::NormBounds norms{std::sqrt(2.0), 257.0};
  const Enclosure exact = path.logit(0.7 * 256, 1e-10, norms);
  CHECK(exact.lo == 179 && exact.hi == 179);
  const Enclosure other = path.logit(0.7 * 257.296875, 1e-10, norms);
  CHECK(other.lo == 181 && other.hi == 181);
  CHECK(path.computed(0.7 * 257.296875) == 181);
  const Enclosure moved = path.logit(0.7 * 256, 1e-10, norms, -100);
  CHECK(moved.lo == 79 && moved.hi == 79);
}

TEST(paths_enclose_what_kernels_compute) {
  // In double, with a little noise in place of the errors of float32, and each step rounded.
  std::mt19937_64 random(3);
  for (const NumberFormat format : {NumberFormat::bfloat16(), NumberFormat::float16()}) {
    for (const double softcap : {0.0, 5.0}) {
      for (const bool fused : {false, true}) {
        const Kernel kernel{true, format, format, format, {}, fused};
        for (int turn = 0; turn < 2000; ++turn) {
          const double scale = std::ldexp(0.3 + uniform(random), turn % 9 - 4);
          const double p = 200 * (uniform(random) - 0.5) / scale;
          const double bias = turn % 3 == 0 ? 0 : 10 * (uniform(random) - 0.5);
          const detail::LogitPath path(kernel, scale, softcap, 8);
          const detail::NormBounds norms{1.0, std::abs(p) * (1 + 1e-9)};
          const auto noisy = [&](double x) {
            return x * (1 + 0x1p-24 * (2 * uniform(random) - 1));
          };
          const auto round = [&](double x) {
            return fused && uniform(random) < 0.5 ? noisy(x) : format.rounded(noisy(x));
          };
          double x = round(round(p) * scale);
          if (softcap > 0) x = round(round(std::tanh(round(x / softcap))) * softcap);
          x = round(x + bias);
          const Enclosure one = path.logit(scale * p, 0, norms, bias);
          CHECK_THAT(one.lo <= x && x <= one.hi, x - one.lo);
        }
      }
    }
  }
}

TEST(paths_of_any_numbers_are_never_nan) {
  constexpr double largest = std::numeric_limits<double>::max();
  const NumberFormat half = NumberFormat::float16();
  for (const Kernel& kernel :
       {Kernel{}, Kernel{true, {}, {}, {}, {}, false}, Kernel{true, half, half, half, {}, false},
        Kernel{false, half, half, half, {}, true}}) {
    for (const double softcap : {0.0, 1e-300, 5.0, 1e300}) {
      for (const double scale : {-1.0, 1e-308, 1e-40, 1e300}) {
        const detail::LogitPath path(kernel, scale, softcap, 4);
        for (const double x : {0.0, 1.0, -70000.0, 1e300, -largest, infinity}) {
          for (const double size : {0.0, 1.0, 1e300, infinity}) {
            for (const double bias : {0.0, 1e308, -infinity}) {
              const detail::NormBounds norms{size, size, 0, size};
              for (const Enclosure& e :
                   {path.logit(x, size, norms), path.logit(x, size, norms, bias)}) {
                CHECK(e.lo <= e.hi);
              }
            }
          }
        }
      }
    }
  }
}

TEST(weights_are_within_their_errors) {
  // Each weight rounded to float16, after it is divided by the sum or before.
  const NumberFormat half = NumberFormat::float16();
  std::mt19937_64 random(5);
  for (int turn = 0; turn < 2000; ++turn) {
    const double spread = 20 * uniform(random);
    double s[4], sum = 0;
    for (double& x : s) sum += std::exp(x = -spread * uniform(random));
    const double least = std::min(s[0], s[1]), most = std::max(s[0], s[1]);
    const double off = std::max(s[2], s[3]), top = std::max(most, off);
    const auto at = [](double x) { return Enclosure::exactly(x); };
    const detail::WeightErrors errors =
        detail::weight_errors(half, at(least), at(most), at(off), 2, 4);
    for (const bool divided : {false, true}) {
      const auto weight = [&](double x) {
        return half.rounded(std::exp(divided ? x : x - top) / (divided ? sum : 1));
      };
      const Enclosure leak = errors.quotient(exp(at(off - least)));
      const double computed = weight(off) / std::min(weight(s[0]), weight(s[1]));
      CHECK_THAT(leak.lo <= computed && computed <= leak.hi, computed - leak.hi);
      const Enclosure ratio = errors.quotient(exp(at(most - least)));
      CHECK(ratio.lo <= weight(most) / weight(least) && weight(most) / weight(least) <= ratio.hi);
    }
  }
}

TEST(enclosures_are_never_nan) {
  constexpr double largest = std::numeric_limits<double>::max();
  const double nan = std::nan("");
  for (const double x : {0.0, 1e300, -1e300, largest, infinity, -infinity, nan}) {
    for (const double r : {0.0, 1.0, largest, infinity, nan}) {
      const Enclosure a = Enclosure::around(x, r);
      CHECK(!std::isnan(a.lo) && !std::isnan(a.hi));
      for (const double y : {0.0, largest, infinity, -infinity}) {
        const Enclosure d = a - Enclosure::exactly(y), e = exp(d), m = expm1(d);
        CHECK(d.lo <= d.hi && e.lo <= e.hi && m.lo <= m.hi);
      }
    }
  }
  // A result that overflows is known to be at least the largest double.
  CHECK(exp(Enclosure::exactly(1000)).lo > 1e308);
  CHECK(exp(Enclosure::exactly(1000)).hi == infinity);
  CHECK((Enclosure::exactly(1e308) - Enclosure::exactly(-1e308)).lo > 1.7e308);
}

TEST(bounds_of_products_at_every_exponent) {
  const auto exact = [](double a, double b, double c) {
    return (long double)a * (long double)b * (long double)c;  // its exponent has 15 bits
  };
  for (const double a : {0x1.8p-1074, 1e-300, 1e-160, 0.3, 7e150, 1e308}) {
    for (const double b : {4.9e-324, 1.1e-200, 0.7, 3e200, 1.7e308}) {
      for (const double c : {2e-310, 1e-100, 3.0, 1e160}) {
        const double bound = product_above(a, b, c);
        const long double product = exact(a, b, c);
        CHECK_THAT((long double)bound >= product, a, ' ', b, ' ', c);
        if (product > 1e-300L && product < 1e300L) {
          CHECK_THAT((long double)bound <= product * (1 + 1e-14L), a, ' ', b, ' ', c);
        }
      }
    }
  }
  CHECK(product_above(0, 1e308, 1e308) == 0);
  CHECK(product_above(0, infinity, 1) == infinity);
  CHECK(product_above(std::nan(""), 1, 1) == infinity);
}

TEST(norms_at_every_exponent) {
  for (const double size : {0x1p-1074, 0x1p-1022, 1e-200, 1e-160, 1.0, 1e150, 1e200, 1e307}) {
    Eigen::RowVectorXd row = Eigen::RowVectorXd::Constant(49, size);
    row[3] = -size;
    const long double norm = 7 * (long double)size;
    CHECK_THAT((long double)norm_above(row) >= norm, size);
    CHECK_THAT((long double)norm_above(row) <= norm * (1 + 1e-13L) + 5e-324L, size);
  }
  CHECK(norm_above(Eigen::RowVectorXd(Eigen::RowVectorXd::Zero(5))) == 0);
  CHECK(norm_above(Eigen::RowVectorXd()) == 0);
  CHECK(norm_above(Eigen::RowVectorXd(Eigen::RowVectorXd::Constant(2, infinity))) == infinity);
}

TEST(sums_of_few_bits_have_wider_bounds) {
  CHECK(truncated_roundings(16, float32_bits) == 0);
  CHECK(truncated_roundings(16, 14) == (16 + 8) * 0x1p11);
  CHECK(truncated_roundings(17, 23) == (17 + 10) * 4);
  double last = 0;
  for (const int bits : {24, 23, 14, 9}) {
    const double radius = float32_kernels_radius(0.5, 16, bits, 3, 4);
    CHECK(radius > last && radius < infinity);
    last = radius;
  }
  CHECK(last < (24 + 1) * 0x1p-8 * 0.5 * 12 * 1.2);
  CHECK(float32_kernels_radius(0.5, 512, 9, 3, 4) == infinity);
}

TEST(scores_are_rounded_with_their_ends) {
  using detail::rounded_score;
  Kernel kernel{.float32 = true, .logits = NumberFormat::float16()};
  const auto is = [&](Enclosure x, double lo, double hi, double most = 10) {
    const Enclosure y = rounded_score(x, kernel, most);
    return y.lo == lo && y.hi == hi;
  };
  CHECK(is({1 + 0x1p-12, 1 + 3 * 0x1p-12}, 1, 1 + 0x1p-10));
  CHECK(is({-3, 65519}, -3, 65504, 65503));
  CHECK(is({1, 2}, -infinity, infinity, 65504));  // another score may overflow
  // Subnormal numbers may be flushed, before they are rounded to a normal one too.
  CHECK(is({0x1p-20, 0x1p-19}, 0, 0x1p-19));
  CHECK(is({-0x1p-14 * (1 - 0x1p-13), -0x1p-14 * (1 - 0x1p-13)}, -0x1p-14, 0));
  kernel.fused = true;
  CHECK(is({1 + 0x1p-12, 1 + 3 * 0x1p-12}, 1, 1 + 0x1p-10));
  CHECK(is({1 - 0x1p-13, 1 + 0x1p-12}, 1 - 0x1p-13, 1 + 0x1p-12));
  kernel.logits = std::nullopt;
  CHECK(is({0.1, 0.2}, 0.1, 0.2));
}

TEST(float32_kernels_stay_within_their_bound) {
  // If q and k are multiplied first, their product underflows, and the scale magnifies that error.
  const double q = 0x1p-75, k = 0x1p-75, scale = 3e38;
  const float lost = static_cast<float>(q) * static_cast<float>(k) * static_cast<float>(scale);
  CHECK(std::abs(lost - scale * q * k) <= float32_kernels_radius(scale, 1, float32_bits, q, k));
  // There is no finite bound if one of the kernels may overflow.
  CHECK(float32_kernels_radius(1e-30, 4, float32_bits, 1e20, 1e20) == infinity);
  CHECK(float32_kernels_radius(1e30, 4, float32_bits, 1e20, 1e-20) == infinity);
  CHECK(float32_kernels_radius(1e30, 4, float32_bits, 1e-20, 1e20) == infinity);
  CHECK(float32_kernels_radius(1e-39, 4, float32_bits, 1, 1) ==
        infinity);  // a scale that may be flushed
  CHECK(float32_kernels_radius(0.5, 64, float32_bits, 10, 10) < 1e-3);
}

TEST(errors_of_products_that_another_library_rounded) {
  Numbers numbers(31);
  for (const double size : {0x1p-545, 1e-30, 1.0, 1e40}) {
    const Index n = 5, width = 12, d = 3;
    Matrix<double> x(n, width), w(width, d);
    for (Index i = 0; i < x.size(); ++i) x.data()[i] = size * numbers.next();
    for (Index i = 0; i < w.size(); ++i) w.data()[i] = numbers.next() / size;
    x.col(1) = -x.col(0);
    w.row(1) = w.row(0) * (1 - 1e-15);  // large terms cancel
    const Matrix<double> product = x * w;
    const Matrix<float> narrow = product.cast<float>();
    const Vector<double> wide =
        product_errors(heads_as_double(x), heads_as_double(w), heads_as_double(product));
    const Vector<double> rounded =
        product_errors(heads_as_double(x), heads_as_double(w), heads_as_double(narrow));
    for (Index i = 0; i < n; ++i) {
      long double error = 0, narrow_error = 0;
      for (Index c = 0; c < d; ++c) {
        long double exact = 0;
        for (Index p = 0; p < width; ++p) exact += (long double)x(i, p) * (long double)w(p, c);
        error += std::pow(exact - (long double)product(i, c), 2);
        narrow_error += std::pow(exact - (long double)narrow(i, c), 2);
      }
      CHECK_THAT(std::sqrt(error) <= (long double)wide[i], size);
      CHECK_THAT(std::sqrt(narrow_error) <= (long double)rounded[i], size);
      CHECK_THAT(wide[i] < 1e-13 && rounded[i] < 1e-5, size);
    }
  }
}

TEST(products_of_16_bits_are_refused) {
  const Matrix<double> x = Matrix<double>::Ones(2, 2);
  const Eigen::half narrow[4] = {};
  const Eigen::bfloat16 brief[4] = {};
  for (const Stored stored : {Stored(narrow), Stored(brief)}) {
    CHECK_THROWS(InputError, "must be stored in float or double",
                 product_errors(heads_as_double(x), heads_as_double(x), {stored, 1, 2, 2, 4, 2}));
  }
}

TEST(enclosures_enclose) {
  Numbers numbers(1);
  for (int i = 0; i < 2000; ++i) {
    const double a = 30 * numbers.next(), b = 30 * numbers.next();
    const Enclosure e = exp(Enclosure::exactly(a)), m = expm1(Enclosure::exactly(a));
    CHECK((long double)e.lo <= std::exp((long double)a) &&
          (long double)e.hi >= std::exp((long double)a));
    CHECK((long double)m.lo <= std::expm1((long double)a) &&
          (long double)m.hi >= std::expm1((long double)a));
    const Enclosure l = headfit::log(std::abs(a));
    CHECK((long double)l.lo <= std::log((long double)std::abs(a)) &&
          (long double)l.hi >= std::log((long double)std::abs(a)));
    const Enclosure d = Enclosure::exactly(a) - Enclosure::exactly(b);
    CHECK((long double)d.lo <= (long double)a - b && (long double)d.hi >= (long double)a - b);
  }
  // The norm is bounded from above also where squares underflow or sums round down.
  Eigen::RowVectorXd tiny = Eigen::RowVectorXd::Constant(100, 1e-170);
  CHECK(norm_above(tiny) >= 1e-169);
  Eigen::RowVectorXf thirds = Eigen::RowVectorXf::Constant(3, 1.0f / 3);
  CHECK((long double)norm_above(thirds) >= std::sqrt(3.0L) * (long double)(1.0f / 3));
  const DotBound bound = DotBound::of<float>(64, 66);
  CHECK(bound.relative >= 66 * std::ldexp(1.0, -24) / (1 - 66 * std::ldexp(1.0, -24)));
}

TEST(operands_of_kernels) {
  const auto bounds = [](double x, const OperandRounding& how) {
    float low = 0, high = 0;
    operand_bounds(std::span<const double>(&x, 1), how, &low, &high);
    return std::pair<double, double>(low, high);
  };
  const NumberFormat narrow = NumberFormat::bfloat16();
  // Halfway between two numbers but for a bit that float32 does not hold: rounded at once it is
  // the upper one, and by way of float32 the lower one, which is even.
  const double x = 1 + 0x1p-8 + 0x1p-40;
  CHECK(bounds(x, {narrow}) == std::pair(1 + 0x1p-7, 1 + 0x1p-7));
  CHECK(bounds(x, {narrow, 1, true}) == std::pair(1.0, 1 + 0x1p-7));
  CHECK(bounds(3.0, {narrow, -0.5}) == std::pair(-1.5, -1.5));
  // A product halfway between two numbers becomes either where it has an error.
  CHECK(bounds(1 + 0x1p-7, {narrow, 1.5, true, 0x1p-21}) == std::pair(1.5 + 0x1p-7, 1.5 + 0x1p-6));
  // What may be flushed to zero.
  CHECK(bounds(0x1p-126, {narrow, 2.0, true, 0x1p-21}) == std::pair(0.0, 0x1p-125));
  CHECK(bounds(0x1p-126, {narrow, 2.0}) == std::pair(0x1p-125, 0x1p-125));
  const double inf = std::numeric_limits<double>::infinity();
  CHECK(bounds(-inf, {narrow, 2.0, true, 0x1p-21}) == std::pair(-inf, -inf));
  CHECK(bounds(1e300, {narrow}) == std::pair(inf, inf));
  CHECK(std::isnan(bounds(std::nan(""), {narrow, 2.0, true, 0x1p-21}).first));
}

// Certificates of selections ----------------------------------------------------------------

namespace {

// An index of whole numbers over 4, and two query heads that share a key head. An index of several heads
// has the form "sum".
struct Chosen {
  Numbers numbers;
  Problem<float> heads;
  Stack<float> q, k;
  SelectionOptions options{.keys = 14, .first = 2, .window = 5, .mass = 0.5};

  Chosen(Index n, Index m, Index d, std::uint64_t seed, Index index_heads = 0)
      : numbers(seed),
        heads(2, 2, n, m, 6, numbers),
        q(std::max(index_heads, Index(1)), n, d),
        k(1, m, d) {
    if (index_heads > 0) options.form = IndexForm::sum;
    const double size = index_heads > 0 ? 4 : 40;
    for (Stack<float>* x : {&q, &k}) {
      for (float& y : x->data) y = static_cast<float>(std::rint(size * numbers.next()) / 4);
    }
  }

  template <class T = float>
  SelectionRows judge(std::vector<Column>& columns, int threads = 1) {
    columns.assign(static_cast<std::size_t>(heads.n * options.keys), 7);
    LogitSource<T> source;
    const LogitSource<float> narrow = heads.source();
    source.q = {narrow.q.data, 2, heads.n, heads.d, narrow.q.head_stride, narrow.q.row_stride};
    source.k = {narrow.k.data, 1, heads.m, heads.d, narrow.k.head_stride, narrow.k.row_stride};
    source.group = 2, source.scale = heads.scale, source.softcap = heads.softcap;
    source.mask = narrow.mask, source.sinks = narrow.sinks;
    return certify_selection(source, q.view(), k.view(), options, columns.data(), {threads, {}});
  }

  double norm(const Stack<float>& x, Index head, Index i) const {
    double sum = 0;
    for (Index p = 0; p < x.cols; ++p) sum += std::pow(x.at(head, i, p), 2);
    return std::sqrt(sum);
  }

  // The sum of the sizes of terms.
  double size_of(Index head, Index i, Index j) const {
    double sum = 0;
    for (Index p = 0; p < q.cols; ++p) sum += std::abs(double(q.at(head, i, p)) * k.at(0, j, p));
    return sum;
  }

  // A row's sums of softmaxes, with `factor` times the bound of the page on certificates around them.
  std::vector<Enclosure> sums(Index i, const std::vector<Index>& visible, double factor) const {
    const auto n = double(visible.size()), count = double(q.count);
    const double u = 0x1p-24, gamma = double(q.cols + 4) * u;
    std::vector<double> w(std::size_t(heads.m), 0.0), size = w;
    double q_max = 0, k_max = 0;
    for (Index h = 0; h < q.count; ++h) {
      const auto product = [&](Index j) {
        double x = 0;
        for (Index p = 0; p < q.cols; ++p) x += double(q.at(h, i, p)) * double(k.at(0, j, p));
        return x;
      };
      double all = 0;
      for (const Index j : visible) all += std::exp(product(j));
      for (const Index j : visible) {
        w[std::size_t(j)] += std::exp(product(j)) / all;
        size[std::size_t(j)] = std::max(size[std::size_t(j)], size_of(h, i, j));
      }
      q_max = std::max(q_max, norm(q, h, i));
    }
    const Index valid = heads.key_lengths.empty() ? heads.m : heads.key_lengths[0];
    for (Index j = 0; j < valid; ++j) k_max = std::max(k_max, norm(k, 0, j));
    const double blocks = std::min(n, double(heads.m) / 16 + 1);
    const double common =
        (gamma + 4 * u) * q_max * k_max + u * (n + 9 * blocks + 35 + 14 * std::log(n));
    std::vector<Enclosure> ends(w.size());
    for (const Index j : visible) {
      const double x = w[std::size_t(j)];
      const double e =
          factor * (gamma * size[std::size_t(j)] + (count > 1 ? common : 0) +
                    u * (66 + count + 13 * std::abs(std::log(x)) + 16 * std::log(count)));
      ends[std::size_t(j)] = {x * std::exp(-e), x * std::exp(e)};
    }
    return ends;
  }

  // The definitions, key by key: how many other free keys may beat, or surely beat, a key whose radius is
  // `factor` times the bound.
  void check_row(Index i, const SelectionRows& rows, const std::vector<Column>& columns) const {
    std::vector<Index> always, free;
    const Index position = i + heads.m - heads.n;
    Index seen = 0;
    for (Index j = 0; j < heads.m; ++j) {
      if (!heads.mask.allows(0, i, j, heads.n, heads.m)) continue;
      const bool is_kept =
          seen++ < options.first || (j <= position && j > position - options.window);
      (is_kept ? always : free).push_back(j);
    }
    std::vector<Index> visible = always;
    visible.insert(visible.end(), free.begin(), free.end());
    std::map<double, std::vector<Enclosure>> of_sums;
    for (const double factor : {0.0, 0.99, 1.01}) {
      if (options.form == IndexForm::sum) of_sums[factor] = sums(i, visible, factor);
    }
    const auto interval = [&](Index j, double factor) {
      if (options.form == IndexForm::sum) return of_sums[factor][std::size_t(j)];
      double score = 0;  // exact: whole numbers over 16
      for (Index p = 0; p < q.cols; ++p) {
        score += double(q.at(0, i, p)) * double(k.at(0, j, p));
      }
      const double radius = factor * double(q.cols + 2) * 0x1p-24 * size_of(0, i, j);
      return Enclosure{score - radius, score + radius};
    };
    const auto sure = [&](double factor) {
      std::vector<Index> found = always;
      for (const Index j : free) {
        Index others = 0;
        for (const Index l : free) {
          others += l != j && interval(l, factor).hi >= interval(j, factor).lo;
        }
        if (others < options.budget()) found.push_back(j);
      }
      std::sort(found.begin(), found.end());
      return found;
    };
    std::vector<Index> found;
    for (Index p = 0; p < options.keys; ++p) {
      const Column j = columns[std::size_t(i * options.keys + p)];
      if (j >= 0) found.push_back(j);
    }
    const std::vector<Index> fewest = sure(1.01), most = sure(0.99);
    CHECK(std::ranges::includes(found, fewest) && std::ranges::includes(most, found));
    CHECK(rows.sure[std::size_t(i)] == std::ssize(found));
    CHECK(rows.selected[std::size_t(i)] ==
          std::ssize(always) + std::min<Index>(options.budget(), std::ssize(free)));
    // What a kernel without rounding selects.
    std::vector<Index> one = free;
    std::ranges::stable_sort(one, std::greater<>(), [&](Index j) { return interval(j, 0).lo; });
    one.resize(std::size_t(std::min(options.budget(), std::ssize(one))));
    one.insert(one.end(), always.begin(), always.end());
    for (Index h = 0; h < 2; ++h) {
      double all = heads.sinks.empty() ? 0 : std::exp(heads.sinks[std::size_t(h)]);
      double kept = 0, surely = 0;
      for (const Index j : always) all += std::exp(heads.logit(h, i, j));
      for (const Index j : free) all += std::exp(heads.logit(h, i, j));
      for (const Index j : one) kept += std::exp(heads.logit(h, i, j));
      for (const Index j : found) surely += std::exp(heads.logit(h, i, j));
      const Index at = h * heads.n + i;
      if (one.empty()) all = kept = surely = 1;
      CHECK(rows.least[at] <= kept / all + 1e-13 && rows.most[at] >= kept / all - 1e-13);
      CHECK_THAT(rows.least[at] > surely / all - 1e-4, rows.least[at], " of ", surely / all);
      if (std::ssize(found) == std::ssize(one)) CHECK(rows.most[at] < rows.least[at] + 1e-4);
      const Verdict verdict = rows.least[at] >= options.mass ? Verdict::holds
                              : rows.most[at] < options.mass ? Verdict::fails
                                                             : Verdict::undecided;
      CHECK(rows.verdict[std::size_t(at)] == verdict);
    }
  }
};

}  // namespace

TEST(selections_are_those_of_the_definition_under_every_mask) {
  std::uint64_t seed = 0;
  for (const Index m : {1, 9, 61, 200}) {
    for (int at = 0; at < 16; ++at) {
      const int kind = at % 8;
      const Index heads_of_index = at < 8 ? 0 : 1 + kind % 3;  // those of sums
      Chosen c(kind % 2 ? m : 40, m, kind % 3 ? 4 : 17, ++seed, heads_of_index);
      c.heads.sparse_columns.reserve(1);  // no null pointer, even without entries
      if (kind == 1) c.heads.mask.right = 0;
      if (kind == 2) c.heads.mask.left = 20, c.heads.mask.right = 3;
      if (kind == 3) put_sparse(c.heads, c.numbers, 0.4);
      if (kind == 4) put_sparse(c.heads, c.numbers, 0.05);
      if (kind == 5) {
        put_keys(c.heads, c.numbers);
        c.heads.mask.keys_head = 0, c.heads.sinks = {0.5, -1};
      }
      if (kind == 6) c.heads.key_lengths = {m / 2, m / 2};
      if (kind == 6) c.heads.mask.key_lengths = c.heads.key_lengths.data();
      if (kind == 7) c.heads.softcap = 0.7, c.options.first = 0;
      std::vector<Column> columns, again;
      const SelectionRows rows = c.judge(columns), wide = c.judge<double>(again);
      for (Index i = 0; i < c.heads.n; ++i) c.check_row(i, rows, columns);
      CHECK(columns == again);
      CHECK(wide.sure == rows.sure);
      const SelectionRows parallel = c.judge(again, 3);
      CHECK(parallel.least == rows.least && parallel.most == rows.most && columns == again);
    }
  }
}

TEST(sums_of_softmaxes_that_underflow_are_equal) {
  // Two heads find keys 0 and 1; exponentials of the other keys are below 2^-126 in both, and their
  // scores in float32 may all be 0.
  Chosen c(1, 30, 2, 1, 2);
  c.options.first = 0, c.options.window = 1;
  const auto put = [](Stack<float>& x, Index head, Index row, float a, float b) {
    x.data[std::size_t((head * x.rows + row) * 2)] = a;
    x.data[std::size_t((head * x.rows + row) * 2 + 1)] = b;
  };
  for (Index j = 0; j < 30; ++j) put(c.k, 0, j, -float(j) / 4, -float(j) / 4);
  put(c.k, 0, 0, 100, 0), put(c.k, 0, 1, 0, 100);
  put(c.q, 0, 0, 1, 0), put(c.q, 1, 0, 0, 1);
  std::vector<Column> columns;
  c.judge(columns);
  CHECK((std::vector<Column>(columns.begin(), columns.begin() + 4) ==
         std::vector<Column>{0, 1, 29, -1}));
  for (float& x : c.k.data) x /= 2;
  const SelectionRows rows = c.judge(columns);
  CHECK(rows.sure[0] == rows.selected[0]);
}

TEST(equal_keys_are_surely_selected_only_where_all_fit) {
  Chosen c(30, 30, 3, 4);
  for (float& x : c.k.data) x = 1;
  std::vector<Column> columns;
  const SelectionRows rows = c.judge(columns);
  // Of row 29 the first 2 and the last 5 are kept, and 7 of 23 others are selected, whichever.
  CHECK(rows.sure[29] == 7);
  CHECK(rows.selected[29] == 14);
  CHECK(rows.least[29] < rows.most[29]);
  c.options.keys = 30;
  CHECK(c.judge(columns).sure[29] == 30);
  CHECK(c.judge(columns).least[29] == 1);
  // A query of zeros has equal scores too.
  c.options.keys = 14;
  for (float& x : c.k.data) x = static_cast<float>(c.numbers.next());
  std::fill_n(c.q.data.begin() + 29 * 3, 3, 0.0f);
  CHECK(c.judge(columns).sure[29] == 7);
  CHECK(c.judge(columns).sure[28] == 14);
}

TEST(scores_that_may_overflow_select_nothing_surely) {
  Chosen c(30, 30, 3, 5);
  for (Stack<float>* x : {&c.q, &c.k}) {
    for (float& y : x->data) y *= 0x1p58f;
  }
  std::vector<Column> columns;
  CHECK(c.judge(columns).sure[29] == 14);
  for (float& y : c.k.data) y *= 0x1p6f;
  CHECK(c.judge(columns).sure[29] == 7);
  // Of sums nothing is known where products may be off by as much as a half.
  Chosen sum(30, 30, 3, 5, 2);
  CHECK(sum.judge(columns).sure[29] > 7);
  for (float& y : sum.k.data) y *= 0x1p20f;
  const SelectionRows rows = sum.judge(columns);
  CHECK(rows.sure[29] == 7 && rows.selected[29] == 14);
}

TEST(a_mass_that_float_cannot_decide_is_decided_in_double) {
  Chosen c(60, 60, 4, 6);
  for (float& y : c.heads.q.data) y *= 10;
  std::vector<Column> columns;
  const SelectionRows exact = c.judge<double>(columns);
  Index at = 59;
  const auto is_open = [&](Index i) { return exact.least[i] > 0.1 && exact.least[i] < 0.9; };
  while (!is_open(at) || exact.sure[std::size_t(at)] != exact.selected[std::size_t(at)]) --at;
  for (const double beyond : {-1e-8, 1e-8}) {
    c.options.mass = exact.least[at] + beyond;
    const SelectionRows rows = c.judge(columns);
    CHECK(rows.rescanned > 0);
    CHECK(rows.verdict[std::size_t(at)] == (beyond < 0 ? Verdict::holds : Verdict::fails));
  }
}

TEST(selections_refuse_what_they_cannot_judge) {
  Chosen c(30, 30, 3, 7);
  std::vector<Column> columns;
  c.options.keys = 7;
  CHECK_THROWS(InputError, "keys must be more than first + window", c.judge(columns));
  c.options.keys = 14;
  c.heads.key_lengths = {30, 29};
  c.heads.mask.key_lengths = c.heads.key_lengths.data();
  CHECK_THROWS(InputError, "must have the same mask", c.judge(columns));
  c.heads.mask = {};
  c.k.data[5] = std::nanf("");
  CHECK_THROWS(NonFiniteError, "K_index", c.judge(columns));
  Chosen sum(30, 30, 3, 7, 2);
  sum.q.data[97] = std::nanf("");
  CHECK_THROWS(NonFiniteError, "Q_index", sum.judge(columns));
  sum.options.form = IndexForm::dot;
  CHECK_THROWS(InputError, "Q_index must be a matrix with 30 rows", sum.judge(columns));
}
