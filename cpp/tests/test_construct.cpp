// The random projection: its stream, its target logits and its product.
#include <cmath>

#include "check.hpp"
#include "headfit/construct/projection.hpp"
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

  // 91,000 entries: means of powers lie within 6 standard errors.
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

TEST(rademacher_entries_are_signs) {
  const Matrix<float> g = sketch<float>(Sketch::rademacher, 1, 64, 300);
  CHECK((g.array().abs() == 1.0f).all());
}

TEST(target_logits_of_theory) {
  OwnedTarget t;
  t.row({0, 1}, {0.25, 0.75}).row({}, {}).row({2}, {1});
  std::vector<double> b(3);
  target_logits(t.view(), 0.05, 0.25, b);
  const double tau = std::log(20.0) + std::log(1.25);
  CHECK(std::abs(b[0] - tau) < 1e-12);
  CHECK(std::abs(b[1] - (tau + std::log(3.0))) < 1e-12);
  CHECK(std::abs(b[2] - tau) < 1e-12);
}

template <class T>
void check_projection() {
  const Index n = 70, d = 40;
  const OwnedTarget t = regular_target(n, 3, 4);
  std::vector<double> b(t.weights.size());
  target_logits(t.view(), 0.05, 0.1, b);
  Matrix<T> q(n, d), k(n, d);
  project_identity<T>(t.view(), 0.05, 0.1, Sketch::gaussian, 9, 2.5, q, k, {1, {}});
  const Matrix<T> g = sketch<T>(Sketch::gaussian, 9, n, d);
  const double near = 20 * static_cast<double>(std::numeric_limits<T>::epsilon());
  for (Index i = 0; i < n; ++i) {
    const auto want_k = g.row(i).template cast<double>() / std::sqrt(static_cast<double>(d));
    CHECK((k.row(i).template cast<double>() - want_k).norm() <= near * want_k.norm());
    Eigen::RowVectorXd want = Eigen::RowVectorXd::Zero(d);
    for (Offset p = t.offsets[std::size_t(i)]; p < t.offsets[std::size_t(i) + 1]; ++p) {
      want += 2.5 * b[std::size_t(p)] *
              g.row(t.columns[std::size_t(p)]).template cast<double>() / std::sqrt(double(d));
    }
    CHECK_THAT((q.row(i).template cast<double>() - want).norm() <= near * want.norm(), "row ", i);
  }
  for (const int threads : {2, 3}) {
    Matrix<T> q2(n, d), k2(n, d);
    project_identity<T>(t.view(), 0.05, 0.1, Sketch::gaussian, 9, 2.5, q2, k2, {threads, {}});
    CHECK(q2 == q);
    CHECK(k2 == k);
  }
}

TEST(projection_float) { check_projection<float>(); }
TEST(projection_double) { check_projection<double>(); }
