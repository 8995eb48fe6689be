// The random projection: its stream, its target logits and its product.
#include <cmath>
#include <numbers>

#include "check.hpp"
#include "headfit/projection/projection.hpp"
#include "sample.hpp"

using namespace headfit;
using namespace headfit::test;

namespace {

template <class T>
Matrix<T> sketch(Sketch kind, std::uint64_t seed, Index n, Index d, int threads = 1) {
  Matrix<T> g(n, d);
  fill_sketch<T>(kind, seed, g, {threads, {}});
  return g;
}

template <class T>
void check_sketch(Sketch kind) {
  const Matrix<T> wide = sketch<T>(kind, 5, 130, 700);
  for (const Index d : {1, 2, 3, 64, 127, 128, 129, 255, 256, 257, 699}) {
    for (const Index n : {1, 63, 64, 65, 130}) {
      CHECK_THAT((sketch<T>(kind, 5, n, d) == wide.topLeftCorner(n, d)), "n=", n, " d=", d);
    }
  }
  for (const int threads : {2, 3}) CHECK((sketch<T>(kind, 5, 130, 700, threads) == wide));
  CHECK((sketch<T>(kind, 6, 130, 700) != wide));

  // The means of the powers of 91,000 entries lie within 6 standard errors.
  const auto x = wide.template cast<double>().array();
  const double error = 6 / std::sqrt(static_cast<double>(x.size()));
  CHECK_THAT(std::abs(x.mean()) < error, x.mean());
  CHECK_THAT(std::abs(x.square().mean() - 1) < error * std::sqrt(2.0), x.square().mean());
  CHECK_THAT(std::abs(x.cube().mean()) < error * std::sqrt(15.0), x.cube().mean());
  const double fourth = kind == Sketch::gaussian ? 3 : 1;
  CHECK_THAT(std::abs(x.pow(4).mean() - fourth) < error * std::sqrt(96.0), x.pow(4).mean());
  // Rows are not correlated, nor are neighbouring columns.
  const Matrix<double> m = wide.template cast<double>();
  CHECK(std::abs(m.row(0).dot(m.row(1))) < 6 * std::sqrt(700.0));
  CHECK(std::abs(m.col(0).dot(m.col(1))) < 6 * std::sqrt(130.0));
  CHECK(x.isFinite().all());
}

}  // namespace

TEST(gaussian_float) { check_sketch<float>(Sketch::gaussian); }
TEST(gaussian_double) { check_sketch<double>(Sketch::gaussian); }
TEST(rademacher_float) { check_sketch<float>(Sketch::rademacher); }
TEST(rademacher_double) { check_sketch<double>(Sketch::rademacher); }

// Compares the entries with the method of Box and Muller in double, from the words of the stream.
TEST(gaussian_entries) {
  const Matrix<float> g = sketch<float>(Sketch::gaussian, 3, 40, 600);
  const Matrix<double> wide = sketch<double>(Sketch::gaussian, 3, 40, 600);
  const double unit = std::ldexp(1.0, -32);
  for (Index j = 0; j < 40; ++j) {
    for (Index l = 0; l < 600; l += 2) {
      const RandomBlock block = Philox(3)(std::uint64_t(j), std::uint64_t(l / 4));
      const auto u = [&](Index w) { return (block[std::size_t(l % 4 + w)] + 0.5) * unit; };
      const double radius = std::sqrt(-2 * std::log(u(0)));
      const double angle = 2 * std::numbers::pi * u(1);
      const double x = radius * std::cos(angle), y = radius * std::sin(angle);
      CHECK(std::abs(wide(j, l) - x) <= 1e-14 * radius &&
            std::abs(wide(j, l + 1) - y) <= 1e-14 * radius);
      // The argument of the logarithm is rounded to float, which matters where the radius is small.
      const double near = 1e-6 * radius + 1e-7 / radius;
      CHECK_THAT(std::abs(g(j, l) - x) <= near, g(j, l), " against ", x);
      CHECK_THAT(std::abs(g(j, l + 1) - y) <= near, g(j, l + 1), " against ", y);
    }
  }
}

TEST(rademacher_entries_are_signs) {
  const Matrix<float> g = sketch<float>(Sketch::rademacher, 1, 64, 300);
  CHECK((g.array().abs() == 1.0f).all());
  const RandomBlock block = Philox(1)(5, 1);
  for (Index l = 128; l < 256; ++l) {
    const bool is_set = block[std::size_t(l / 32 - 4)] >> (l % 32) & 1u;
    CHECK((g(5, l) > 0) == is_set);
  }
}

TEST(target_logits_of_theory) {
  OwnedTarget t;
  t.row({0, 1}, {0.25, 0.75}).row({}, {}).row({2}, {1});
  std::vector<double> b(3);
  target_logits(t.view(), {0.05, 0.25}, b, {1, {}});
  const double tau = std::log(20.0) + std::log(1.25);
  CHECK(std::abs(b[0] - tau) < 1e-12);
  CHECK(std::abs(b[1] - (tau + std::log(3.0))) < 1e-12);
  CHECK(std::abs(b[2] - tau) < 1e-12);
}

template <class T>
void check_projection(Sketch kind, Index d) {
  const Index n = 70;
  OwnedTarget t = regular_target(n, 3, 4);
  t.row({}, {});
  std::vector<double> b(t.weights.size());
  target_logits(t.view(), {0.05, 0.1}, b, {1, {}});
  // The views have gaps between their rows, and are not aligned for vectors.
  Matrix<T> q_wide = Matrix<T>::Constant(n + 1, d + 3, 7), k_wide = q_wide;
  auto q = q_wide.middleCols(1, d), k = k_wide.middleCols(1, d);
  project_identity<T>(t.view(), {0.05, 0.1}, {kind, 9, 2.5}, q, k, {1, {}});
  for (const auto& wide : {q_wide, k_wide}) {
    CHECK((wide.leftCols(1).array() == 7).all() && (wide.rightCols(2).array() == 7).all());
  }
  const Matrix<T> g = sketch<T>(kind, 9, n + 1, d);
  const double near = 20 * static_cast<double>(std::numeric_limits<T>::epsilon());
  for (Index i = 0; i <= n; ++i) {
    const auto want_k = g.row(i).template cast<double>() / std::sqrt(static_cast<double>(d));
    CHECK((k.row(i).template cast<double>() - want_k).norm() <= near * want_k.norm());
    Eigen::RowVectorXd want = Eigen::RowVectorXd::Zero(d);
    double size = 0;  // the sum of the terms' norms; the terms themselves may cancel
    for (Offset p = t.offsets[std::size_t(i)]; p < t.offsets[std::size_t(i) + 1]; ++p) {
      const Eigen::RowVectorXd term = b[std::size_t(p)] / 2.5 / std::sqrt(double(d)) *
                                      g.row(t.columns[std::size_t(p)]).template cast<double>();
      want += term;
      size += term.norm();
    }
    CHECK_THAT((q.row(i).template cast<double>() - want).norm() <= near * size, "row ", i);
  }
  for (const int threads : {2, 3}) {
    Matrix<T> q2(n + 1, d), k2(n + 1, d);
    project_identity<T>(t.view(), {0.05, 0.1}, {kind, 9, 2.5}, q2, k2, {threads, {}});
    CHECK(q2 == q);
    CHECK(k2 == k);
  }
}

// The sizes end just after vectors, blocks of the stream and strips; the last has many strips.
template <class T>
void check_projections() {
  for (const Sketch kind : {Sketch::gaussian, Sketch::rademacher}) {
    for (const Index d : {1, 7, 40, 129, 513, 2049, 40000}) check_projection<T>(kind, d);
  }
}

TEST(logits_of_ratios_that_overflow) {
  constexpr double tiny = std::numeric_limits<double>::denorm_min();
  OwnedTarget t;
  t.row({0, 1}, {1, tiny}).row({0, 1}, {0.25, 0.75});
  std::vector<double> b(4);
  target_logits(t.view(), {0.05, 0.25}, b, {1, {}});
  const double tau = std::log(1 / 0.05) + std::log1p(0.25);
  CHECK(b[0] == -std::log(tiny) + tau && b[1] == tau && b[2] == tau);
  CHECK(std::abs(b[3] - (std::log(3.0) + tau)) < 1e-15 * b[3]);
  target_logits(t.view(), {tiny, 0.25}, b, {1, {}});
  CHECK(b[1] == -std::log(tiny) + std::log1p(0.25));
  Matrix<double> q(2, 64), k(2, 64);
  project_identity<double>(t.view(), {0.05, 0.25}, {}, q, k, {1, {}});
  CHECK(q.allFinite());
}

TEST(bad_projection_arguments) {
  const OwnedTarget t = regular_target(20, 3, 4);
  Matrix<float> q(20, 8), k(20, 8), small(19, 8), narrow(20, 7), none(20, 0);
  std::vector<double> b(t.weights.size());
  const auto project = [&](const OwnedTarget& target, const Tolerances& tolerances,
                           const ProjectionOptions& options) {
    project_identity<float>(target.view(), tolerances, options, q, k, {1, {}});
  };
  for_bad_tolerances([&](const Tolerances& bad) { project(t, bad, {}); });
  for_bad_tolerances([&](const Tolerances& bad) { target_logits(t.view(), bad, b, {1, {}}); });
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const double scale : {0.0, nan, inf}) {
    CHECK_THROWS(InputError, "scale must be finite and nonzero", project(t, {}, {.scale = scale}));
  }
  const std::string shapes = "Q and K must have one row for each of the 20 rows of A";
  for (auto* bad : {&small, &narrow, &none}) {
    CHECK_THROWS(InputError, shapes, project_identity<float>(t.view(), {}, {}, *bad, k, {1, {}}));
    CHECK_THROWS(InputError, shapes, project_identity<float>(t.view(), {}, {}, q, *bad, {1, {}}));
  }
  CHECK_THROWS(InputError, shapes, project_identity<float>(t.view(), {}, {}, none, none, {1, {}}));
  CHECK_THROWS(TargetError, "column 20 in row 19", project(target_out_of_range(20), {}, {}));
  b.pop_back();
  CHECK_THROWS(InputError, "a place for each of the 60 nonzeros",
               target_logits(t.view(), {}, b, {1, {}}));
}

TEST(projection_float) { check_projections<float>(); }
TEST(projection_double) { check_projections<double>(); }
