// Compares deferred acceptance with a plain greedy choice among all sorted entries.
#include <numeric>

#include "check.hpp"
#include "headfit/sparsify/sparsify.hpp"
#include "problem.hpp"

using namespace headfit;
using namespace headfit::test;

namespace {

struct Share {
  double weight;
  Index row, col;
};

// Takes entries by falling weight, then by row and column, while their row and column have room.
std::vector<Share> slow_greedy(std::vector<Share> entries, Index n, Index m,
                               const SparsifyOptions& o) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Share& a, const Share& b) { return a.weight > b.weight; });
  std::vector<Index> in_row(static_cast<std::size_t>(n)), in_col(static_cast<std::size_t>(m));
  std::vector<double> mass(static_cast<std::size_t>(n));
  std::vector<Share> taken;
  for (const Share& e : entries) {
    const auto i = static_cast<std::size_t>(e.row), j = static_cast<std::size_t>(e.col);
    const auto exempt = std::find(o.exempt.begin(), o.exempt.end(), static_cast<Column>(e.col));
    const bool is_free = o.per_column == 0 || exempt != o.exempt.end();
    if ((o.per_row && in_row[i] >= o.per_row) || (o.mass > 0 && mass[i] >= o.mass - 1e-12) ||
        (!is_free && in_col[j] >= o.per_column)) {
      continue;
    }
    ++in_row[i];
    ++in_col[j];
    mass[i] += e.weight;
    taken.push_back(e);
  }
  std::sort(taken.begin(), taken.end(), [](const Share& a, const Share& b) {
    return a.row < b.row || (a.row == b.row && a.col < b.col);
  });
  return taken;
}

// Checks that a result agrees with the slow greedy choice.
void check_same(const SparseRows& got, const std::vector<Share>& want, Index n, double tolerance,
                const std::string& where) {
  std::vector<bool> kept(static_cast<std::size_t>(n));
  for (const Share& e : want) kept[static_cast<std::size_t>(e.row)] = true;
  std::size_t next = 0;
  for (Index i = 0; i < n; ++i) {
    const Offset begin = got.offsets[static_cast<std::size_t>(i)];
    const Offset end = got.offsets[static_cast<std::size_t>(i) + 1];
    if (!kept[static_cast<std::size_t>(i)]) {
      CHECK_THAT(end - begin <= 1, where, " row ", i);  // the row's largest entry, or nothing
      continue;
    }
    double sum = 0;
    for (std::size_t p = next; p < want.size() && want[p].row == i; ++p) sum += want[p].weight;
    CHECK_THAT(std::abs(got.dropped[static_cast<std::size_t>(i)] - (1 - sum)) < tolerance, where,
               " row ", i);
    for (Offset p = begin; p < end; ++p, ++next) {
      const bool same = next < want.size() && want[next].row == i &&
                        want[next].col == got.columns[static_cast<std::size_t>(p)];
      CHECK_THAT(same, where, " row ", i, ", entry ", p - begin);
      if (!same) return;
      const double weight = want[next].weight / sum;
      CHECK_THAT(std::abs(got.weights[static_cast<std::size_t>(p)] - weight) < tolerance, where,
                 " row ", i);
    }
  }
  CHECK_THAT(next == want.size(), where);
}

const std::vector<Column> exempt{0, 2};

std::vector<SparsifyOptions> all_options() {
  const auto keep = OnEmpty::keep_max;
  return {{3, 0, 0, {}, false, keep},   {3, 0, 3, {}, false, keep},
          {8, 0, 1, {}, false, keep},   {0, 0.7, 0, {}, false, keep},
          {0, 0.7, 2, {}, false, keep}, {4, 0.9, 3, exempt, false, keep}};
}

// The weights are small integers, so there are many ties.
TEST(matrices_are_thinned_as_the_slow_greedy_does) {
  Numbers numbers(1);
  for (const auto& [n, m] : {std::pair<Index, Index>{1, 3}, {20, 30}, {61, 40}}) {
    Matrix<double> weights(n, m);
    for (Index i = 0; i < n; ++i) {
      for (Index j = 0; j < m; ++j) weights(i, j) = static_cast<double>(numbers.below(5));
    }
    weights.row(0).setZero();
    weights.col(2).array() += 3;
    std::vector<Share> shares;
    for (Index i = 0; i < n; ++i) {
      const double sum = weights.row(i).sum();
      for (Index j = 0; j < m; ++j) {
        if (weights(i, j) > 0) shares.push_back({weights(i, j) / sum, i, j});
      }
    }
    const Heads<double> view{weights.data(), 1, n, m, 0, m};
    for (const SparsifyOptions& o : all_options()) {
      for (const int threads : {1, 3}) {
        const SparseRows got = sparsify_matrix(view, Mask{}, o, {threads, {}});
        check_same(got, slow_greedy(shares, n, m, o), n, 1e-12,
                   text("n=", n, ", per_row=", o.per_row));
      }
    }
  }
}

template <class T>
void check_logits() {
  std::uint64_t seed = 0;
  for (const auto& [n, m, d] : {std::array<Index, 3>{1, 5, 2}, {70, 90, 5}, {40, 600, 3}}) {
    for (const Masking<T>& masking : all_masks<T>()) {
      Numbers numbers(++seed);
      Problem<T> p(1, 1, n, m, d, numbers);
      masking.put(p, numbers);
      if (p.some_rows) continue;
      const LogitSource<T> source = p.source();
      Stack<T> logits(1, n, m);
      attention_logits(source, logits.out(), {1, {}});
      std::vector<Share> shares;
      for (Index i = 0; i < n; ++i) {
        long double sum = 0;
        for (Index j = 0; j < m; ++j) sum += std::exp(static_cast<long double>(logits.at(0, i, j)));
        for (Index j = 0; j < m; ++j) {
          const auto w = std::exp(static_cast<long double>(logits.at(0, i, j))) / sum;
          if (w > 0) shares.push_back({static_cast<double>(w), i, j});
        }
      }
      for (const SparsifyOptions& o : all_options()) {
        for (const int threads : {1, 3}) {
          const SparseRows got = sparsify_logits(source, o, {threads, {}});
          check_same(got, slow_greedy(shares, n, m, o), n, sizeof(T) == 4 ? 1e-5 : 1e-11,
                     text(masking.name, ", n=", n, ", per_row=", o.per_row, ", ", sizeof(T) * 8,
                          " bits"));
        }
      }
    }
  }
}

TEST(logits_in_float) { check_logits<float>(); }
TEST(logits_in_double) { check_logits<double>(); }

// Points of a lattice have many ties, those at one place nothing else; many points need a tree.
TEST(nearest_points_are_chosen_as_the_slow_greedy_does) {
  Numbers numbers(2);
  for (const Index dims : {1, 3, 17}) {
    for (const Index n : {1, 2, 9, 200}) {
      for (const int kind : {0, 1, 2}) {
        Matrix<double> points(n, dims);
        for (Index p = 0; p < points.size(); ++p) {
          points.data()[p] = kind == 0   ? numbers.next()
                             : kind == 1 ? static_cast<double>(numbers.below(4))
                                         : 0.5;
        }
        std::vector<Share> pairs;
        for (Index i = 0; i < n; ++i) {
          for (Index j = 0; j < n; ++j) {
            double square = 0;
            for (Index c = 0; c < dims; ++c) {
              const double beside = points(j, c) - points(i, c);
              square += beside * beside;
            }
            if (i != j) pairs.push_back({-square, i, j});
          }
        }
        for (const Index per_column : {0, 1, 4, 6}) {
          const SparsifyOptions o{4, 0, per_column, {}, false, OnEmpty::leave};
          const std::vector<Share> want = slow_greedy(pairs, n, n, o);
          const std::string where = text("n=", n, ", dims=", dims, ", kind ", kind);
          for (const int threads : {1, 3}) {
            const std::span<const double> view(points.data(), points.size());
            const SparseRows got = nearest_points(view, dims, 4, per_column, {threads, {}});
            CHECK_THAT(got.columns.size() == want.size(), where);
            for (std::size_t p = 0; p < std::min(want.size(), got.columns.size()); ++p) {
              const auto i = static_cast<std::size_t>(want[p].row);
              const auto at = static_cast<Offset>(p);
              CHECK_THAT(got.offsets[i] <= at && at < got.offsets[i + 1], where, ", pair ", p);
              CHECK_THAT(got.columns[p] == want[p].col, where, ", pair ", p);
              CHECK_THAT(got.weights[p] == -want[p].weight, where, ", pair ", p);
            }
          }
        }
      }
    }
  }
  CHECK_THROWS(InputError, "at least one", nearest_points({}, 1, 1, 0, {1, {}}));
}

TEST(a_row_that_keeps_nothing_is_named) {
  const Matrix<double> weights{{0.9, 0.1}, {0.8, 0.2}, {0.7, 0.3}};
  const Heads<double> view{weights.data(), 1, 3, 2, 0, 2};
  SparsifyOptions o{1, 0, 1, {}, false, OnEmpty::raise};
  CHECK_THROWS(InputError, "row 1 keeps nothing", sparsify_matrix(view, Mask{}, o, {1, {}}));
  o.on_empty = OnEmpty::keep_max;
  CHECK(sparsify_matrix(view, Mask{}, o, {1, {}}).columns == std::vector<Column>({0, 0, 1}));
}

TEST(arguments_are_checked) {
  const Matrix<double> weights{{0.9, 0.1}, {0.8, -0.2}};
  const Heads<double> view{weights.data(), 1, 2, 2, 0, 2};
  const std::vector<Column> outside{2};
  const Run run{1, {}};
  CHECK_THROWS(InputError, "row 1, column 1", sparsify_matrix(view, Mask{}, {1}, run));
  const Matrix<double> large = Matrix<double>::Constant(2, 2, 1e308);
  const Heads<double> sums{large.data(), 1, 2, 2, 0, 2};
  CHECK_THROWS(InputError, "that of row 0", sparsify_matrix(sums, Mask{}, {1}, run));
  const Matrix<double> even = Matrix<double>::Constant(2, 2, 0.5);
  const Heads<double> halves{even.data(), 1, 2, 2, 0, 2};
  CHECK(sparsify_matrix(halves, Mask{}, {.mass = 1e-13}, run).columns.size() == 2);
  CHECK_THROWS(InputError, "per_row or mass", sparsify_matrix(view, Mask{}, {}, run));
  CHECK_THROWS(InputError, "mass", sparsify_matrix(view, Mask{}, {1, 2.0}, run));
  CHECK_THROWS(InputError, "exempt_columns",
               sparsify_matrix(view, Mask{}, {1, 0, 1, outside}, run));
  Numbers numbers(1);
  CHECK_THROWS(InputError, "one head",
               sparsify_logits(Problem<float>(2, 1, 3, 3, 1, numbers).source(), {1}, run));
}

TEST(compressed_rows_are_checked_before_they_are_read) {
  const std::vector<Offset> offsets{0, 1, 2}, backward{0, 1000000, 2}, late{1, 1, 2};
  const std::vector<Column> columns{0, 1}, beyond{0, 2}, below{0, -1};
  const std::vector<double> weights{1, 1};
  const auto sparsify = [&](const std::vector<Offset>& o, const std::vector<Column>& c) {
    const CompressedRows rows{2, 2, o.data(), c.data(), weights.data()};
    return sparsify_compressed(rows, Mask{}, {.per_row = 1}, {1, {}});
  };
  CHECK(sparsify(offsets, columns).columns == columns);
  CHECK_THROWS(InputError, "decreasing row offsets at row 1", sparsify(backward, columns));
  CHECK_THROWS(InputError, "start at 0", sparsify(late, columns));
  CHECK_THROWS(InputError, "column 2 in row 1", sparsify(offsets, beyond));
  CHECK_THROWS(InputError, "column -1 in row 1", sparsify(offsets, below));
}

TEST(an_interruption_stops_the_scan) {
  Numbers numbers(3);
  const Problem<float> p(1, 1, 6000, 6000, 64, numbers);
  const Run run{1, [] { throw Interrupted(); }};
  CHECK_THROWS(Interrupted, "", sparsify_logits(p.source(), {64, 0, 1}, run));
}

}  // namespace
