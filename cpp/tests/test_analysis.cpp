// Compares the profile of heads with sums over the dense matrix.
#include <Eigen/SVD>
#include <numeric>

#include "check.hpp"
#include "headfit/analysis/exact_sums.hpp"
#include "headfit/analysis/profile.hpp"
#include "headfit/analysis/squared_mass.hpp"
#include "headfit/analysis/triangular_factors.hpp"
#include "problem.hpp"

using namespace headfit;
using namespace headfit::test;

namespace {

struct Profile {
  std::vector<double> top_mass, log_gamma, induction, column_mass, offset_mass;
  std::vector<double> entropy, key_mass;
  std::vector<Offset> kept, load, keys;

  Profile(Index heads, Index n, Index m)
      : top_mass(size(heads, n)),
        log_gamma(size(heads, n)),
        induction(size(heads, n)),
        column_mass(size(heads, m)),
        offset_mass(size(heads, std::max<Index>(0, n + m - 1))),
        entropy(size(heads, n)),
        key_mass(size(heads, n)),
        kept(size(heads, n)),
        load(size(heads, m)),
        keys(2 * size(heads, n)) {}
  static std::size_t size(Index a, Index b) { return static_cast<std::size_t>(a * b); }
  ProfileOut out(bool tokens) {
    return {top_mass.data(),    log_gamma.data(),
            kept.data(),        tokens ? induction.data() : nullptr,
            load.data(),        column_mass.data(),
            offset_mass.data(), stats()};
  }
  StatsOut stats() {
    return {entropy.data(), nullptr, nullptr, keys.data(), shares, key_mass.data()};
  }
  static constexpr std::array<double, 2> shares{0.5, 0.9};
};

bool close(double got, double want, double tolerance) {
  if (std::isnan(want)) return std::isnan(got);
  return std::abs(got - want) <= tolerance * (1 + std::abs(want));
}

// Compares the profile of one head with sums entry by entry.
template <class T>
void compare(const Problem<T>& p, Index h, const Stack<T>& logits, const ProfileOptions& o,
             Profile& got, const std::string& where) {
  const double tolerance = sizeof(T) == 4 ? 2e-5 : 1e-11;
  const auto at = [](Index i) { return static_cast<std::size_t>(i); };
  std::vector<double> column(at(p.m)), offset(at(p.n + p.m));
  std::vector<Offset> load(at(p.m));
  for (Index i = 0; i < p.n; ++i) {
    std::vector<std::pair<double, Index>> row;  // (-weight, column)
    long double sum = 0;
    for (Index j = 0; j < p.m; ++j) sum += std::exp(static_cast<long double>(logits.at(h, i, j)));
    for (Index j = 0; j < p.m; ++j) {
      const auto w =
          static_cast<double>(std::exp(static_cast<long double>(logits.at(h, i, j))) / sum);
      if (w > 0) row.push_back({-w, j});
      if (sum > 0) column[at(j)] += w, offset[at(i + p.m - 1 - j)] += w;
    }
    std::sort(row.begin(), row.end());
    double top = 0;
    Index kept = 0;
    for (Index r = 0; r < std::min<Index>(o.per_row, static_cast<Index>(row.size())); ++r) {
      if (top < o.share - 1e-9) ++kept, ++load[at(row[at(r)].second)];
      top -= row[at(r)].first;
    }
    const double gamma = kept ? std::log(row[0].first / row[at(kept - 1)].first) : 0;
    const Index place = h * p.n + i;
    CHECK_THAT(close(got.top_mass[at(place)], top, tolerance), where, " row ", i);
    CHECK_THAT(got.kept[at(place)] == kept, where, " row ", i);
    CHECK_THAT(close(got.log_gamma[at(place)], gamma, tolerance), where, " row ", i);
    if (!o.tokens) continue;
    double induction = std::nan("");
    for (Index j = 0; j + 1 < i; ++j) {
      if (o.tokens[j] != o.tokens[i] || sum == 0) continue;
      const auto e =
          static_cast<double>(std::exp(static_cast<long double>(logits.at(h, i, j + 1))) / sum);
      induction = std::isnan(induction) ? e : induction + e;
    }
    CHECK_THAT(close(got.induction[at(place)], induction, tolerance), where, " row ", i);
  }
  for (Index j = 0; j < p.m; ++j) {
    CHECK_THAT(close(got.column_mass[at(h * p.m + j)], column[at(j)], tolerance), where, " column ",
               j);
    CHECK_THAT(got.load[at(h * p.m + j)] == load[at(j)], where, " column ", j);
  }
  for (Index x = 0; x < p.n + p.m - 1 && p.n > 0; ++x) {
    CHECK_THAT(close(got.offset_mass[at(h * (p.n + p.m - 1) + x)], offset[at(x)], tolerance), where,
               " offset ", x);
  }
}

template <class T>
void check_profiles() {
  for_all_problems<T>([](const Problem<T>& p, const std::string& where) {
    if (p.some_rows || p.m == 0) return;
    const LogitSource<T> source = p.source();
    Stack<T> logits(p.heads, p.n, p.m);
    attention_logits(source, logits.out(), {1, {}});
    std::vector<Offset> of_places(static_cast<std::size_t>(p.n));
    for (Index i = 0; i < p.n; ++i) of_places[static_cast<std::size_t>(i)] = i * i % 5 - 2;
    const bool tokens = p.n == p.m;
    const ProfileOptions o{3, 0.8, tokens ? of_places.data() : nullptr, 0};
    for (const int threads : {1, 3}) {
      Profile got(p.heads, p.n, p.m);
      head_profile(source, o, got.out(tokens), {threads, {}});
      for (Index h = 0; h < p.heads; ++h) compare(p, h, logits, o, got, where);
      Profile alone(p.heads, p.n, p.m);
      attention_stats(source, alone.stats(), {1, {}});
      CHECK_THAT(got.entropy == alone.entropy && got.keys == alone.keys &&
                     got.key_mass == alone.key_mass,
                 where);
    }
  });
}

TEST(a_support_has_an_entry_however_small_the_share) {
  Numbers numbers(1);
  const Problem<double> p(1, 1, 5, 4, 3, numbers);
  for (const double share : {1e-13, 1e-12, 5e-324}) {
    Profile got(1, 5, 4);
    head_profile(p.source(), {8, share, nullptr, 0}, got.out(false), {1, {}});
    for (std::size_t i = 0; i < 5; ++i) CHECK(got.kept[i] == 1 && got.log_gamma[i] == 0);
    CHECK(std::accumulate(got.load.begin(), got.load.end(), Offset(0)) == 5);
  }
}

TEST(profiles_in_float) { check_profiles<float>(); }
TEST(profiles_in_double) { check_profiles<double>(); }

template <class T>
void check_triangular_factors() {
  using Shape = std::array<Index, 3>;
  for (const auto& [n, m, d] : {Shape{1, 1, 1}, {50, 70, 5}, {3, 40, 8}, {200, 90, 6}}) {
    Numbers numbers(static_cast<std::uint64_t>(n));
    Problem<T> p(4, 2, n, m, d, numbers);
    p.key_lengths = {m, m / 2, m, 0};
    p.mask.key_lengths = p.key_lengths.data();
    std::vector<double> queries(4 * d * d), keys(4 * d * d), centred(4 * d * d);
    const LogitSource<T> source = p.source();
    // The factors are asked for in two parts, as callers with many heads do.
    const Index part = 3 * d * d;
    triangular_factors(source, {0, 3, queries.data(), keys.data(), centred.data()}, {3, {}});
    triangular_factors(source,
                       {3, 1, queries.data() + part, keys.data() + part, centred.data() + part},
                       {1, {}});
    CHECK_THROWS(InputError, "heads",
                 triangular_factors(source, {3, 2, nullptr, nullptr, nullptr}, {1, {}}));
    for (Index h = 0; h < 4; ++h) {
      const Index count = p.key_lengths[static_cast<std::size_t>(h)];
      const auto check = [&, at = h * d * d, width = d](const std::vector<double>& found,
                                                        const Matrix<double>& rows) {
        const Eigen::Map<const Matrix<double>> triangle(found.data() + at, width, width);
        CHECK(Matrix<double>(triangle.triangularView<Eigen::StrictlyLower>()).isZero(0));
        const Matrix<double> want = rows.transpose() * rows;
        const Matrix<double> got = triangle.transpose() * triangle;
        CHECK((got - want).norm() <= 1e-13 * (1 + want.norm()));
      };
      check(queries, source.q[h].template cast<double>());
      const Matrix<double> used = source.k[h / 2].template cast<double>().topRows(count);
      check(keys, used);
      if (count > 0) check(centred, used.rowwise() - used.colwise().mean());
    }
  }
}

TEST(triangular_factors_in_float) { check_triangular_factors<float>(); }
TEST(triangular_factors_in_double) { check_triangular_factors<double>(); }

TEST(sums_do_not_depend_on_the_order) {
  Numbers numbers(1);
  std::vector<double> terms(1000);
  for (double& x : terms) x = std::abs(numbers.next());
  ExactSums a(1, 1000), b(1, 1000);
  for (std::size_t i = 0; i < terms.size(); ++i) {
    a.add(0, &terms[i], 1);
    b.add(0, &terms[terms.size() - 1 - i], 1);
  }
  double x = 0, y = 0;
  a.write(&x);
  b.write(&y);
  CHECK(x == y);
  long double exact = 0;
  for (const double t : terms) exact += t;
  CHECK_THAT(std::abs(x - static_cast<double>(exact)) < 1e-12, x);
}

TEST(arguments_are_checked) {
  Numbers numbers(2);
  const Problem<float> p(1, 1, 4, 4, 2, numbers);
  Profile got(1, 4, 4);
  const Run run{1, {}};
  const Problem<float> wide(1, 1, 4, 5, 2, numbers);
  Profile of_wide(1, 4, 5);
  const std::vector<Offset> tokens{7, 1, 7, 7};
  CHECK_THROWS(InputError, "per_row", head_profile(p.source(), {0, 0.9}, got.out(false), run));
  CHECK_THROWS(InputError, "share", head_profile(p.source(), {1, 0.0}, got.out(false), run));
  CHECK_THROWS(InputError, "as many queries as keys; got 4 and 5",
               head_profile(wide.source(), {1, 0.9, tokens.data(), 0}, of_wide.out(true), run));
}

template <class T>
void check_squares() {
  for_all_problems<T>([](const Problem<T>& p, const std::string& where) {
    if (p.some_rows || p.m == 0) return;
    const LogitSource<T> source = p.source();
    Stack<T> logits(p.heads, p.n, p.m);
    attention_logits(source, logits.out(), {1, {}});
    std::vector<double> got(static_cast<std::size_t>(p.heads * p.m)), again = got;
    squared_mass(source, got.data(), {1, {}});
    squared_mass(source, again.data(), {3, {}});
    CHECK(got == again);
    for (Index h = 0; h < p.heads; ++h) {
      std::vector<double> expected(static_cast<std::size_t>(p.m));
      for (Index i = 0; i < p.n; ++i) {
        double sum = p.sinks.empty() ? 0 : std::exp(p.sinks[static_cast<std::size_t>(h)]);
        for (Index j = 0; j < p.m; ++j) sum += std::exp(static_cast<double>(logits.at(h, i, j)));
        for (Index j = 0; j < p.m && sum > 0; ++j) {
          const double weight = std::exp(static_cast<double>(logits.at(h, i, j))) / sum;
          expected[static_cast<std::size_t>(j)] += weight * weight;
        }
      }
      for (Index j = 0; j < p.m; ++j) {
        CHECK_THAT(close(got[static_cast<std::size_t>(h * p.m + j)],
                         expected[static_cast<std::size_t>(j)], sizeof(T) == 4 ? 2e-5 : 1e-11),
                   where, " column ", j);
      }
    }
  });
}

TEST(squared_weights_are_those_of_the_matrix) {
  check_squares<float>();
  check_squares<double>();
}

}  // namespace
