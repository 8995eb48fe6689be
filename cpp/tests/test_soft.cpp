// Dense soft targets: the loss against its definition, the descent.
#include <atomic>

#include "check.hpp"
#include "headfit/soft/compare.hpp"
#include "headfit/soft/fit_soft.hpp"
#include "problem.hpp"

using namespace headfit;
using namespace headfit::test;

namespace {

template <class T>
Heads<T> head(const Stack<T>& s) {
  return s.view();
}

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
          soft_loss<T>(target, small.mask, head(small.q), head(small.k), Run{2, {}});
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

}  // namespace

TEST(loss_and_gradient) {
  check_loss<float>();
  check_loss<double>();
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
