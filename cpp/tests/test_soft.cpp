// Dense soft targets: the loss against its definition, the descent.
#include <atomic>

#include "check.hpp"
#include "headfit/soft/compare.hpp"
#include "headfit/soft/fit_soft.hpp"
#include "problem.hpp"

using namespace headfit;
using namespace headfit::test;

namespace {

// The attention matrix of a problem, as rows of doubles.
template <class T>
std::vector<std::vector<double>> attention(const Problem<T>& p) {
  std::vector<std::vector<double>> rows;
  for (Index i = 0; i < p.n; ++i) {
    std::vector<double> row;
    double top = -infinity, sum = 0;
    for (Index j = 0; j < p.m; ++j) row.push_back(p.logit(0, i, j));
    for (const double s : row) top = std::max(top, s);
    for (double& s : row) sum += s = top == -infinity ? 0 : std::exp(s - top);
    for (double& s : row) s = sum > 0 ? s / sum : 0;
    rows.push_back(row);
  }
  return rows;
}

// A problem of head size d with the mask of another problem.
template <class T>
Problem<T> smaller(const Problem<T>& p, Index d, Numbers& numbers) {
  Problem<T> out(1, 1, p.n, p.m, d, numbers);
  out.scale = 1;
  out.mask = p.mask;
  return out;
}

template <class T>
void check_loss() {
  std::uint64_t seed = 0;
  for (const auto& masking : all_masks<T>()) {
    for (const auto& [n, m] : {std::pair<Index, Index>{1, 1}, {5, 40}, {61, 61}, {70, 300}}) {
      Numbers numbers(++seed);
      Problem<T> wide(1, 1, n, m, 6, numbers);
      masking.put(wide, numbers);
      if (!wide.bias.empty() || wide.some_rows || wide.softcap > 0) continue;  // these are no masks
      const Problem<T> small = smaller(wide, 3, numbers);
      SoftTarget<T> target;
      target.attention = wide.source();
      const SoftLoss<T> got =
          soft_loss<T>(target, small.mask, small.q.view(), small.k.view(), Run{2, {}});
      const auto a = attention(wide), b = attention(small);
      double loss = 0;
      Matrix<double> gradient = Matrix<double>::Zero(n + m, 3);
      for (Index i = 0; i < n; ++i) {
        for (Index j = 0; j < m; ++j) {
          const double x = a[i][j], y = b[i][j];
          if (x > 0) loss += x * std::log(x / y);
          for (Index f = 0; f < 3; ++f) {
            gradient(i, f) += (y - x) * double(small.k.at(0, j, f));
            gradient(n + j, f) += (y - x) * double(small.q.at(0, i, f));
          }
        }
      }
      const double rounding = (sizeof(T) == 4 ? 1e-5 : 1e-12) * static_cast<double>(n + 10);
      CHECK_THAT(std::abs(got.loss - loss) < rounding, masking.name, ": ", got.loss, " ", loss);
      const double off = (got.gradient.template cast<double>() - gradient).cwiseAbs().maxCoeff();
      CHECK_THAT(off < rounding, masking.name, ", n=", n, ": ", off);
    }
  }
}

// Single entries against tiles, where blocks are by entries, by tiles, or some of each.
template <class T>
void check_entries() {
  std::uint64_t seed = 0;
  for (const double share : {0.001, 0.01, 0.03, 0.4}) {
    for (const auto& [n, m, d] : {std::array<Index, 3>{1, 1, 1}, {70, 300, 3}, {160, 1000, 17}}) {
      Numbers numbers(++seed);
      Problem<T> wide(1, 1, n, m, 6, numbers);
      put_sparse(wide, numbers, share);
      if (n == 160) {  // the last rows may attend to many keys
        for (Index i = 130; i < n; ++i) {
          wide.sparse_columns.resize(
              static_cast<std::size_t>(wide.sparse_offsets[static_cast<std::size_t>(i)]));
          for (Index j = i % 3; j < m; j += 2) {
            wide.sparse_columns.push_back(static_cast<Column>(j));
          }
          wide.sparse_offsets[static_cast<std::size_t>(i + 1)] =
              static_cast<Offset>(wide.sparse_columns.size());
        }
        wide.mask.sparse_columns = wide.sparse_columns.data();
      }
      const Problem<T> small = smaller(wide, d, numbers);
      const KeyLayouts layouts = whole_row_layouts(small.source(), Run{1, {}});
      CHECK(n == 1 || layouts.rows == (share < 0.1));
      CHECK(n == 1 || layouts.panels == (share > 0.1 || n == 160));
      const auto loss = [&](const SoftTarget<T>& target, const Mask& mask, int threads) {
        return soft_loss<T>(target, mask, small.q.view(), small.k.view(), Run{threads, {}});
      };
      SoftTarget<T> target, matrix;
      target.attention = wide.source();
      const auto weights = attention(wide);
      std::vector<T> rows;
      for (const auto& row : weights) rows.insert(rows.end(), row.begin(), row.end());
      matrix.matrix.emplace(MatrixView<T>(rows.data(), n, m, RowStride(m)));
      matrix.mask = wide.mask;
      const SoftLoss<T> one = loss(target, small.mask, 1), two = loss(target, small.mask, 2);
      const SoftLoss<T> third = loss(matrix, small.mask, 1);
      CHECK(one.loss == two.loss && one.gradient == two.gradient);
      CHECK(one.curvature == two.curvature);
      Problem<T> open(1, 1, n, m, 6, numbers);
      open.q = wide.q, open.k = wide.k;
      open.mask = wide.mask;
      make_dense(open);
      target.attention = open.source();
      const SoftLoss<T> tiles = loss(target, open.mask, 1);
      const T rounding = (sizeof(T) == 4 ? T(1e-5) : T(1e-13)) * static_cast<T>(n + 10);
      for (const SoftLoss<T>* got : {&one, &third}) {
        CHECK(std::abs(got->loss - tiles.loss) < rounding);
        CHECK((got->gradient - tiles.gradient).cwiseAbs().maxCoeff() < rounding);
        CHECK((got->curvature - tiles.curvature).cwiseAbs().maxCoeff() < rounding);
      }
    }
  }
}

// A row without a target has no part in the loss, though the mask shows it keys: as if it showed none.
template <class T>
void check_rows_without_target() {
  constexpr Index n = 70, m = 300, empty = 5;
  for (const double share : {0.03, 0.4}) {  // by entries, and by tiles
    Numbers numbers(1);
    Problem<T> wide(1, 1, n, m, 6, numbers);
    put_sparse(wide, numbers, share);
    const Problem<T> small = smaller(wide, 3, numbers);
    Problem<T> hidden(1, 1, n, m, 6, numbers);
    hidden.sparse_offsets = wide.sparse_offsets;
    hidden.sparse_columns = wide.sparse_columns;
    const Offset first = wide.sparse_offsets[empty];
    const Offset count = wide.sparse_offsets[empty + 1] - first;
    CHECK(count > 0);
    const auto begin = hidden.sparse_columns.begin() + first;
    hidden.sparse_columns.erase(begin, begin + count);
    for (Index i = empty + 1; i <= n; ++i) {
      hidden.sparse_offsets[static_cast<std::size_t>(i)] -= count;
    }
    hidden.mask.sparse_offsets = hidden.sparse_offsets.data();
    hidden.mask.sparse_columns = hidden.sparse_columns.data();
    SoftTarget<T> target;
    target.attention = hidden.source();
    const auto loss = [&](const Mask& mask) {
      return soft_loss<T>(target, mask, small.q.view(), small.k.view(), Run{1, {}});
    };
    const SoftLoss<T> got = loss(wide.mask), expected = loss(hidden.mask);
    const T rounding = sizeof(T) == 4 ? T(1e-4) : T(1e-11);
    CHECK_THAT(std::abs(got.loss - expected.loss) < rounding, got.loss, " ", expected.loss);
    CHECK((got.gradient - expected.gradient).cwiseAbs().maxCoeff() < rounding);
    CHECK((got.curvature - expected.curvature).cwiseAbs().maxCoeff() < rounding);
    CHECK(got.gradient.row(empty).isZero(0));
  }
}

// The distances by their definition; the masks of both heads may differ.
void check_distances(const Problem<double>& target, const Problem<double>& other) {
  const auto rows_of = [](const Problem<double>& p) {
    std::vector<std::vector<double>> rows = attention(p);
    const double sink = p.source().sink(0);
    for (Index i = 0; i < p.n; ++i) {  // what the sink takes is one more column
      auto& row = rows[static_cast<std::size_t>(i)];
      double sum = 0;
      for (Index j = 0; j < p.m; ++j) sum += std::exp(p.logit(0, i, j));
      const bool attends = sum > 0;
      const double share = attends ? std::exp(sink) / (sum + std::exp(sink)) : 0;
      for (double& x : row) x *= 1 - share;
      row.push_back(share);
    }
    return rows;
  };
  SoftTarget<double> soft;
  soft.attention = target.source();
  const SoftDistances got = compare_soft(soft, other.source(), Run{2, {}});
  const auto a = rows_of(target), b = rows_of(other);
  for (std::size_t i = 0; i < a.size(); ++i) {
    double kl = 0, tv = 0;
    for (std::size_t j = 0; j < a[i].size(); ++j) {
      tv += std::abs(a[i][j] - b[i][j]) / 2;
      if (a[i][j] > 0) kl += a[i][j] * (std::log(a[i][j]) - std::log(b[i][j]));
    }
    CHECK_THAT(std::abs(got.variation[i] - tv) < 1e-12, i, ": ", got.variation[i], " ", tv);
    CHECK_THAT(got.divergence[i] == kl || std::abs(got.divergence[i] - std::max(kl, 0.0)) < 1e-11,
               i, ": ", got.divergence[i], " ", kl);
  }
}

}  // namespace

TEST(loss_and_gradient) {
  check_loss<float>();
  check_loss<double>();
}

TEST(loss_of_few_entries) {
  check_entries<float>();
  check_entries<double>();
}

TEST(rows_without_a_target_have_no_part_in_the_loss) {
  check_rows_without_target<float>();
  check_rows_without_target<double>();
}

TEST(distances_within_all_masks) {
  std::uint64_t seed = 100;
  for (const auto& masking : all_masks<double>()) {
    for (const bool with_sink : {false, true}) {
      Numbers numbers(++seed);
      Problem<double> one(1, 1, 70, 300, 6, numbers), other(1, 1, 70, 300, 3, numbers);
      Numbers same = numbers;
      masking.put(one, numbers);
      masking.put(other, same);
      one.some_rows = other.some_rows = false;
      if (with_sink) one.sinks = {0.3}, other.sinks = {-0.2};
      check_distances(one, other);
    }
  }
}

TEST(distances_of_heads_with_different_masks) {
  Numbers numbers(200);
  Problem<double> all(1, 1, 70, 300, 6, numbers), few(1, 1, 70, 300, 3, numbers);
  Problem<double> fewer(1, 1, 70, 300, 3, numbers);
  put_sparse(few, numbers, 0.03);
  fewer.sparse_offsets = {0};
  for (Index i = 0; i < 70; ++i) {  // every second entry of most rows, and none of some
    for (std::size_t c = i % 5 == 0 ? 1000 : 0; c < few.mask.sparse_row(i).size(); c += 2) {
      fewer.sparse_columns.push_back(few.mask.sparse_row(i)[c]);
    }
    fewer.sparse_offsets.push_back(static_cast<Offset>(fewer.sparse_columns.size()));
  }
  fewer.mask.sparse_offsets = fewer.sparse_offsets.data();
  fewer.mask.sparse_columns = fewer.sparse_columns.data();
  for (const auto* one : {&all, &few, &fewer}) {
    for (const auto* other : {&all, &few, &fewer}) check_distances(*one, *other);
  }
}

TEST(descent_recovers_a_head_of_the_size) {
  Numbers numbers(3);
  Problem<float> wide(1, 1, 90, 90, 3, numbers);
  wide.scale = 1;
  wide.mask.right = 0;
  Problem<float> start = smaller(wide, 3, numbers);
  for (std::size_t t = 0; t < wide.q.data.size(); ++t) {
    start.q.data[t] = wide.q.data[t] + 0.3f * start.q.data[t];
    start.k.data[t] = wide.k.data[t] + 0.3f * start.k.data[t];
  }
  SoftTarget<float> target;
  target.attention = wide.source();
  SoftOptions<float> options{start.q.view(), start.k.view()};
  const SoftResult<float> one = fit_soft(target, wide.mask, options, Run{1, {}});
  CHECK(one.status == DescentStatus::Enough);
  CHECK(one.history.front() > 0.05 && one.history.back() <= options.limits.enough);
  for (const int threads : {2, 5}) {
    const SoftResult<float> other = fit_soft(target, wide.mask, options, Run{threads, {}});
    CHECK(other.q == one.q && other.k == one.k && other.history == one.history);
  }

  // The comparison in double agrees.
  const Matrix<double> q = one.q.cast<double>(), k = one.k.cast<double>();
  const Matrix<double> wide_q = wide.q.view()[0].cast<double>();
  const Matrix<double> wide_k = wide.k.view()[0].cast<double>();
  const auto source = [&](const Matrix<double>& x, const Matrix<double>& y) {
    LogitSource<double> s;
    s.q = {x.data(), 1, 90, 3, 270, 3};
    s.k = {y.data(), 1, 90, 3, 270, 3};
    s.mask = wide.mask;
    return s;
  };
  SoftTarget<double> exact;
  exact.attention = source(wide_q, wide_k);
  const SoftDistances far = compare_soft(exact, source(q, k), Run{2, {}});
  double mean = 0;
  for (const double kl : far.divergence) mean += kl / 90;
  CHECK_THAT(std::abs(mean - one.history.back()) < 5e-7, mean);
}

TEST(a_matrix_is_checked) {
  const std::vector<double> rows = {0.5, 0.5, 0.25, 0.75};
  Stack<double> q(1, 2, 1), k(1, 2, 1);
  SoftTarget<double> target;
  target.matrix.emplace(MatrixView<double>(rows.data(), 2, 2, RowStride(2)));
  CHECK(soft_loss<double>(target, {}, q.view(), k.view(), Run{1, {}}).loss > 0.1);
  target.mask.right = 0;
  CHECK_THROWS(TargetError, "row 0, column 1",
               soft_loss<double>(target, target.mask, q.view(), k.view(), Run{1, {}}));
  Stack<double> wrong(1, 3, 1);
  CHECK_THROWS(InputError, "a start must have 2 queries",
               soft_loss<double>(target, {}, wrong.view(), k.view(), Run{1, {}}));
}

TEST(limits_and_polls_end_a_descent) {
  Numbers numbers(5);
  const Problem<float> wide(1, 1, 200, 200, 8, numbers);
  const Problem<float> start = smaller(wide, 2, numbers);
  SoftTarget<float> target;
  target.attention = wide.source();
  SoftOptions<float> options{start.q.view(), start.k.view()};
  options.limits.max_steps = 4;
  const SoftResult<float> few = fit_soft(target, {}, options, Run{1, {}});
  CHECK(few.status == DescentStatus::StepLimit && few.history.size() == 5);
  options.limits.progress = [](Index step, double) { return step < 2; };
  CHECK(fit_soft(target, {}, options, Run{1, {}}).status == DescentStatus::Stopped);
  options.limits.progress = {};
  options.limits.max_steps = 100000;
  options.limits.tolerance = -1;  // the descent continues as long as any step lowers the loss
  std::atomic<int> calls{0};
  const Run run{2, [&] {
    if (++calls > 1) throw Interrupted();
  }};
  CHECK_THROWS(Interrupted, "interrupted", fit_soft(target, {}, options, run));
}
