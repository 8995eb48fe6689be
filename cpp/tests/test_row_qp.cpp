// Max-margin rows: hand-made rows with known answers, evictions, limits, witnesses, and no
// allocation once a solver has solved a row of the same size.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <new>

#include "check.hpp"
#include "headfit/max_margin/max_margin.hpp"
#include "headfit/row_qp/cutting_planes.hpp"
#include "headfit/row_qp/proofs.hpp"
#include "headfit/simd/column_products.hpp"
#include "problem.hpp"
#include "sample.hpp"

namespace {
std::atomic<long> allocations{0};
}  // namespace

// These must not be inlined, or GCC warns that `new` and `delete` do not match.
[[gnu::noinline]] void* operator new(std::size_t n) {
  ++allocations;
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

using namespace headfit;
using namespace headfit::test;

namespace {

const double level = std::log(20.0);  // leak 0.05
const double delta = std::log1p(0.1);
constexpr RowForm both_forms[] = {RowForm::Tolerance, RowForm::Equality};

// Keys with a plain scan that sorts all violators, the worst first, in memory reserved beforehand.
struct Keys {
  Index n, d;
  std::vector<double> data;
  std::vector<char> skip;
  std::vector<Violator> all;

  Keys(Index d_, std::vector<double> values)
      : n(static_cast<Index>(values.size()) / d_), d(d_), data(std::move(values)), skip(n) {
    all.reserve(n);
  }
  KeyView view() const { return {data.data(), n, d, d}; }
  double dot(std::span<const double> q, Index j) const {
    double sum = 0;
    for (Index i = 0; i < d; ++i) sum += q[i] * data[j * d + i];
    return sum;
  }
  void operator()(std::span<const double> q, double threshold, int limit,
                  std::vector<Violator>& out) {
    all.clear();
    for (Index j = 0; j < n; ++j) {
      const double value = dot(q, j);
      if (!skip[j] && value > threshold) all.push_back({static_cast<Column>(j), value});
    }
    std::sort(all.begin(), all.end(), [](const Violator& a, const Violator& b) {
      return a.value > b.value || (a.value == b.value && a.column < b.column);
    });
    if (static_cast<int>(all.size()) > limit) all.resize(limit);
    out.insert(out.end(), all.begin(), all.end());
  }
};

struct Row {
  std::vector<Column> support;
  std::vector<double> logs;
  RowForm form = RowForm::Tolerance;
  std::vector<Column> masked{};

  RowProblem problem() const { return {support, logs, delta, level, form}; }
};

RowStatus solve(RowSolver& solver, Keys& keys, const Row& row, std::vector<Violator>& buffer,
                const RowSettings& settings = {}) {
  std::fill(keys.skip.begin(), keys.skip.end(), 0);
  for (const Column j : row.support) keys.skip[j] = 1;
  for (const Column j : row.masked) keys.skip[j] = 1;
  return solve_row(solver, keys.view(), row.problem(), settings, std::ref(keys), buffer);
}

void check_row(Keys keys, const Row& row, RowStatus status, std::vector<double> q = {}) {
  RowSolver solver;
  std::vector<Violator> buffer;
  const RowStatus got = solve(solver, keys, row, buffer);
  CHECK_THAT(got == status, static_cast<int>(got));
  for (std::size_t i = 0; i < q.size(); ++i) {
    CHECK_THAT(std::abs(solver.query()[i] - q[i]) <= 1e-12 * (1 + std::abs(q[i])), "q[", i,
               "] = ", solver.query()[i], " not ", q[i]);
  }
}

Keys random_keys(Index n, Index d, std::uint64_t seed) {
  Numbers numbers(seed);
  std::vector<double> values;
  for (Index i = 0; i < n * d; ++i) values.push_back(numbers.next());
  for (Index j = 0; j < n; ++j) {
    double square = 0;
    for (Index i = 0; i < d; ++i) square += values[j * d + i] * values[j * d + i];
    for (Index i = 0; i < d; ++i) values[j * d + i] /= std::sqrt(square);
  }
  return Keys(d, values);
}

// A row whose support is the k keys that lie furthest in a random direction: a query for it exists.
Row extreme_row(const Keys& keys, Index k, RowForm form, std::uint64_t seed) {
  Numbers numbers(seed);
  std::vector<double> direction;
  for (Index i = 0; i < keys.d; ++i) direction.push_back(numbers.next());
  std::vector<Column> order;
  for (Index j = 0; j < keys.n; ++j) order.push_back(static_cast<Column>(j));
  std::sort(order.begin(), order.end(),
            [&](Column a, Column b) { return keys.dot(direction, a) > keys.dot(direction, b); });
  Row row{{order.begin(), order.begin() + k}, {}, form};
  for (Index i = 0; i < k; ++i) row.logs.push_back(0.3 * numbers.next());
  return row;
}

// Recomputes from the terms of a witness the bound gap / |residual| on the norm of a query.
double recomputed_bound(const Keys& keys, const Row& row, const Witness& w) {
  double gap = 0, sums[2] = {0, 0};
  std::vector<double> r(keys.d);
  const double least = *std::min_element(row.logs.begin(), row.logs.end());
  for (const Multiplier& t : w.terms) {
    const auto at = std::find(row.support.begin(), row.support.end(), t.column);
    const bool outside = t.kind == ConstraintKind::Outside;
    CHECK((at == row.support.end()) == outside);
    CHECK(t.value > 0 || t.kind == ConstraintKind::RatioEqual);
    const double a = outside ? 0 : row.logs[at - row.support.begin()];
    const bool lower = t.kind == ConstraintKind::RatioLower || t.kind == ConstraintKind::Margin;
    const bool on_b =
        t.kind == ConstraintKind::Margin || (outside && row.form == RowForm::Tolerance);
    sums[on_b] += lower ? -t.value : t.value;
    for (Index i = 0; i < keys.d; ++i) {
      r[i] += (lower ? t.value : -t.value) * keys.data[t.column * keys.d + i];
    }
    switch (t.kind) {
      case ConstraintKind::RatioUpper: gap -= t.value * (a + delta / 2); break;
      case ConstraintKind::RatioLower: gap += t.value * (a - delta / 2); break;
      case ConstraintKind::Margin: gap += t.value * level; break;
      case ConstraintKind::RatioEqual: gap -= t.value * a; break;
      case ConstraintKind::Outside:
        if (!on_b) gap += t.value * (level + delta - least);
    }
  }
  CHECK(sums[0] == 0 && sums[1] == 0);
  CHECK(gap > 0);
  double square = 0;
  for (const double x : r) square += x * x;
  return gap / std::sqrt(square);
}

}  // namespace

TEST(two_keys_on_a_line) {
  check_row(Keys(1, {0, 1}), {{1}, {0}}, RowStatus::Optimal, {level});
  check_row(Keys(1, {0, 1}), {{0}, {0}}, RowStatus::Optimal, {-level});
  check_row(Keys(1, {0, 1}), {{1}, {0}, RowForm::Equality}, RowStatus::Optimal, {level + delta});
  // A common offset of all keys does not matter, only their distance.
  check_row(Keys(1, {7, 9}), {{1}, {0}}, RowStatus::Optimal, {level / 2});
}

TEST(a_square) {
  // For a vertex, the constraints of both neighbours are active; for an edge, those of the other.
  const Keys square(2, {0, 0, 1, 0, 0, 1, 1, 1});
  for (const RowForm form : both_forms) {
    const double need = form == RowForm::Equality ? level + delta : level;
    check_row(square, {{3}, {0}, form}, RowStatus::Optimal, {need, need});
    check_row(square, {{2, 3}, {0, 0}, form}, RowStatus::Optimal, {0, need});
    check_row(square, {{0, 3}, {0, 0}, form}, RowStatus::Infeasible);  // a diagonal
    check_row(square, {{0, 1, 2, 3}, {0, 0, 0, 0}, form}, RowStatus::Optimal, {0, 0});
  }
  // Unequal log-weights tilt the query: by their difference, less the tolerance if there is one.
  check_row(square, {{2, 3}, {0, 1}, RowForm::Equality}, RowStatus::Optimal,
            {1, level + delta + 1});
  check_row(square, {{2, 3}, {0, 1}}, RowStatus::Optimal, {1 - delta, level + 1 - delta});
}

TEST(masked_keys_and_duplicates) {
  for (const RowForm form : both_forms) {
    check_row(Keys(1, {0, 1, 1}), {{0}, {0}, form, {1, 2}}, RowStatus::Optimal, {0});
    check_row(Keys(1, {0, 1, -1}), {{0}, {0}, form}, RowStatus::Infeasible);
    check_row(Keys(1, {0, 1, 1}), {{1}, {0}, form}, RowStatus::Infeasible);
    check_row(Keys(1, {0, 1, 1}), {{1, 2}, {0, 1}, form}, RowStatus::Infeasible);
    check_row(Keys(2, {0, 0, 0, 0}), {{0}, {0}, form}, RowStatus::Infeasible);  // all keys are 0
  }
}

TEST(a_small_pool_evicts_and_agrees) {
  RowSolver solver;
  std::vector<Violator> buffer;
  bool evicted = false;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Keys keys = random_keys(3000, 8, seed);
    for (const RowForm form : both_forms) {
      const Row row = extreme_row(keys, 3, form, seed + 100);
      RowSettings small;
      small.cuts_per_round = 1;
      small.max_rounds = 5000;
      small.pool_keys = 5000;
      CHECK(solve(solver, keys, row, buffer, small) == RowStatus::Optimal);
      const double norm = solver.norm();
      const auto kept = solver.keys_kept();
      small.pool_keys = 1;
      CHECK(solve(solver, keys, row, buffer, small) == RowStatus::Optimal);
      CHECK_THAT(std::abs(solver.norm() / norm - 1) < 1e-10, solver.norm(), " not ", norm);
      CHECK(solver.keys_kept() <= 3 + 8 + 2 + 2);
      evicted = evicted || solver.keys_kept() < kept;
    }
  }
  CHECK(evicted);
}

TEST(no_allocation_in_repeat_solves) {
  RowSolver solver;
  std::vector<Violator> buffer;
  buffer.reserve(400);
  for (const Index d : {1, 3, 24}) {
    Keys keys = random_keys(200, d, 7);
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      for (const RowForm form : both_forms) {
        Row row = extreme_row(keys, std::min<Index>(3, d), form, seed);
        if (seed % 4 == 0) row.support[0] = static_cast<Column>((row.support[0] + 1) % 200);
        if (std::count(row.support.begin(), row.support.end(), row.support[0]) > 1) continue;
        const RowStatus status = solve(solver, keys, row, buffer);
        const std::vector<double> q(solver.query().begin(), solver.query().end());
        const long before = allocations;
        const RowStatus again = solve(solver, keys, row, buffer);
        CHECK_THAT(allocations == before, "d=", d, " seed=", seed, ": ", allocations - before);
        CHECK(again == status);
        CHECK(std::equal(q.begin(), q.end(), solver.query().begin()));
      }
    }
  }
}

TEST(caps_end_with_a_status) {
  Keys keys = random_keys(300, 16, 3);
  RowSolver solver;
  std::vector<Violator> buffer;
  for (const RowForm form : both_forms) {
    const Row row = extreme_row(keys, 4, form, 5);
    CHECK(solve(solver, keys, row, buffer) == RowStatus::Optimal);
    const double norm = solver.norm();
    CHECK(solver.rounds() > 1 && solver.steps() > 4);
    RowSettings few;
    few.max_steps = 3;
    CHECK(solve(solver, keys, row, buffer, few) == RowStatus::IterationLimit);
    few = {};
    few.max_rounds = 2;
    few.cuts_per_round = 1;
    CHECK(solve(solver, keys, row, buffer, few) == RowStatus::IterationLimit);
    CHECK(solver.norm() <= norm * (1 + 1e-12));  // a relaxation needs no larger norm
    // A row that has ended stays so: more violators change nothing.
    const Violator late[] = {{0, 1e9}};
    CHECK(solver.add(late) == RowStatus::IterationLimit);
    RowSettings limit;
    limit.max_norm = 0.7 * norm;
    CHECK(solve(solver, keys, row, buffer, limit) == RowStatus::NormLimit);
    const Witness& w = solver.witness();
    CHECK_THAT(w.norm_bound >= 0.7 * norm * (1 - 1e-9) && w.norm_bound <= norm * (1 + 1e-12),
               w.norm_bound, " of ", norm);
    CHECK(std::abs(recomputed_bound(keys, row, w) / w.norm_bound - 1) < 1e-9);
    limit.max_norm = norm * (1 + 1e-9);
    CHECK(solve(solver, keys, row, buffer, limit) == RowStatus::Optimal);
  }
}

TEST(infeasible_rows_carry_a_proof) {
  RowSolver solver;
  std::vector<Violator> buffer;
  int infeasible = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Keys keys = random_keys(60, 5, seed);
    for (const RowForm form : both_forms) {
      const Row row{{1, 30, 59}, {0.1, -0.2, 0.3}, form};
      const RowStatus status = solve(solver, keys, row, buffer);
      CHECK(status == RowStatus::Optimal || status == RowStatus::Infeasible);
      if (status != RowStatus::Infeasible) continue;
      ++infeasible;
      CHECK(solver.witness().norm_bound > 1e5);
      CHECK(recomputed_bound(keys, row, solver.witness()) > 1e5);
    }
  }
  CHECK_THAT(infeasible > 10, infeasible);
}

TEST(faces) {
  Keys square(2, {0, 0, 1, 0, 0, 1, 1, 1});
  RowSolver solver;
  const auto report = [&](std::vector<Column> support) {
    std::fill(square.skip.begin(), square.skip.end(), 0);
    for (const Column j : support) square.skip[j] = 1;
    return face_test(solver, square.view(), support, {}, std::ref(square));
  };
  const FaceReport edge = report({2, 3});
  CHECK(edge.verdict == FaceVerdict::Face);
  CHECK(std::abs(edge.margin - 1) < 1e-12);
  CHECK(std::abs(report({3}).margin - std::sqrt(0.5)) < 1e-12);
  const FaceReport diagonal = report({0, 3});
  CHECK(diagonal.verdict == FaceVerdict::NotFace);
  CHECK(diagonal.residual == 0 && diagonal.others_weight == 1);
  double sums[2] = {0, 0};
  for (const ConvexTerm& t : diagonal.inside) sums[0] += t.weight;
  for (const ConvexTerm& t : diagonal.with_others) sums[1] += t.weight;
  CHECK(sums[0] == 1 && sums[1] == 1);
  CHECK(report({0, 1, 2}).verdict == FaceVerdict::NotFace);
  CHECK(report({0, 1, 2, 3}).verdict == FaceVerdict::Face);
}

TEST(the_driver_agrees_with_single_rows) {
  // There are more rows than are solved at a time, and all share the keys.
  const Index n = 210, d = 20;
  Keys keys = random_keys(n, d, 9);
  const OwnedTarget target = regular_target(n, 3, 4);
  for (const RowForm form : both_forms) {
    MaxMarginOptions options;
    options.form = form;
    const MatrixView<double> view(keys.data.data(), n, d, RowStride(d));
    const MaxMarginRows rows = max_margin_queries(target.view(), view, {}, options, {1, {}});
    const MaxMarginRows more = max_margin_queries(target.view(), view, {}, options, {3, {}});
    CHECK(rows.q == more.q && rows.status == more.status && rows.scans == more.scans);
    RowSolver solver;
    std::vector<Violator> buffer;
    for (Index i = 0; i < n; ++i) {
      Row row{{}, {}, form};
      for (Offset e = target.offsets[i]; e < target.offsets[i + 1]; ++e) {
        row.support.push_back(target.columns[e]);
        row.logs.push_back(std::log(target.weights[e]));
      }
      CHECK(solve(solver, keys, row, buffer) == rows.status[i]);
      if (rows.status[i] != RowStatus::Optimal) continue;
      CHECK_THAT(std::abs(rows.norm[i] / solver.norm() - 1) < 1e-9, "row ", i);
    }
  }
}

TEST(bad_max_margin_arguments) {
  const Index n = 210, d = 20;
  Keys keys = random_keys(n, d, 9);
  const OwnedTarget target = regular_target(n, 3, 4);
  const MatrixView<double> view(keys.data.data(), n, d, RowStride(d));
  const MatrixView<double> few(keys.data.data(), n - 1, d, RowStride(d));
  const MatrixView<double> flat(keys.data.data(), n, 0, RowStride(d));
  const Run run{1, {}};
  const std::vector<Index> first{0}, beyond{n}, negative{-1};
  for (const auto& bad : {few, flat}) {
    const std::string reason = "one row for each of the 210 rows of A and at least one column";
    CHECK_THROWS(InputError, reason, max_margin_queries(target.view(), bad, {}, {}, run));
    CHECK_THROWS(InputError, reason, face_reports(target.view(), bad, first, run));
  }
  for_bad_tolerances(
      [&](const Tolerances& bad) { max_margin_queries(target.view(), view, bad, {}, run); });
  CHECK_THROWS(InputError, "max_logit must be infinite here",
               max_margin_queries(target.view(), view, {0.05, 0.1, 30}, {}, run));
  for (const double max_norm : {0.0, -1.0, std::nan("")}) {
    MaxMarginOptions options;
    options.rows.max_norm = max_norm;
    CHECK_THROWS(InputError, "max_norm must be positive",
                 max_margin_queries(target.view(), view, {}, options, run));
  }
  const OwnedTarget outside = target_out_of_range(n);
  CHECK_THROWS(TargetError, "column 210 in row 209",
               max_margin_queries(outside.view(), view, {}, {}, run));
  CHECK_THROWS(TargetError, "column 210 in row 209",
               face_reports(outside.view(), view, first, run));
  for (const auto& rows : {beyond, negative}) {
    CHECK_THROWS(InputError, "rows must be rows of A that are not empty",
                 face_reports(target.view(), view, rows, run));
  }
}

template <class T>
void check_column_products() {
  for (const Index dim : {0, 1, 2, 7, 8, 15, 16, 17, 33, 96}) {
    for (const Index count : {0, 1, 7, 8, 9, 20}) {
      const Index stride = dim + 3, room = round_up(count, product_group);
      const Keys numbers = random_keys(room + 1, std::max<Index>(stride, 1), 11);
      const std::vector<T> columns(numbers.data.begin(), numbers.data.end());
      const std::vector<T> v(columns.end() - stride, columns.end());
      std::vector<T> out(static_cast<std::size_t>(room) + 1, T(-7));
      column_products<T>(columns.data(), stride, dim, count, v.data(), out.data());
      for (Index j = 0; j < count; ++j) {
        double want = 0, size = 0;
        for (Index r = 0; r < dim; ++r) {
          const double term = double(columns[j * stride + r]) * double(v[r]);
          want += term;
          size += std::abs(term);
        }
        const double unit = double(std::numeric_limits<T>::epsilon());
        CHECK_THAT(std::abs(double(out[j]) - want) <= double(dim + 1) * unit * size, "dim ", dim,
                   " column ", j, " of ", count);
      }
      CHECK(out.back() == T(-7));
    }
  }
}

TEST(column_products_float) { check_column_products<float>(); }
TEST(column_products_double) { check_column_products<double>(); }

TEST(keys_outside_single_precision) {
  // Queries scale with 1/keys. Norms outside the range of float require products in double.
  RowSolver solver;
  std::vector<Violator> buffer;
  Keys keys = random_keys(200, 8, 2);
  for (const RowForm form : both_forms) {
    const Row row = extreme_row(keys, 3, form, 6);
    CHECK(solve(solver, keys, row, buffer) == RowStatus::Optimal);
    const double norm = solver.norm();
    for (const double scale : {std::ldexp(1.0, -100), std::ldexp(1.0, 100), std::ldexp(1.0, 300)}) {
      Keys scaled = keys;
      for (double& x : scaled.data) x *= scale;
      CHECK(solve(solver, scaled, row, buffer) == RowStatus::Optimal);
      CHECK_THAT(std::abs(solver.norm() * scale / norm - 1) < 1e-10, scale);
    }
  }
}
