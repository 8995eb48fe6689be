// What descents share: limits, the line search, sums of features, the divergence of a row.
#include <array>
#include <cmath>

#include "check.hpp"
#include "headfit/descent/feature_sums.hpp"
#include "headfit/descent/limits.hpp"
#include "headfit/descent/line_search.hpp"
#include "headfit/descent/row_divergence.hpp"
#include "problem.hpp"

using namespace headfit;
using namespace headfit::test;

namespace {

template <class T>
void check_sums(Index rows, Index count, Index cols) {
  Numbers numbers(7);
  const Index padded = (cols + simd::lanes<T> - 1) / simd::lanes<T> * simd::lanes<T>;
  Stack<T> w = Stack<T>::random(1, rows, padded, numbers);
  for (Index r = 0; r < rows; ++r) {
    for (Index c = cols; c < padded; ++c) w.at(0, r, c) = 0;
  }
  const Stack<T> along_cols = Stack<T>::random(1, count, padded, numbers);
  const Stack<T> along_rows = Stack<T>::random(1, rows, count, numbers);
  Stack<T> gathered(1, rows, count), out(1, count, padded, T(1));
  descent::gather(w.data.data(), padded, rows, along_cols.data.data(), padded, count, padded,
                  gathered.data.data(), count);
  descent::spread(w.data.data(), padded, rows, along_rows.data.data(), count, count, padded,
                  out.data.data(), padded);
  const double rounding = 1e-6 * static_cast<double>(cols + rows);
  for (Index f = 0; f < count; ++f) {
    for (Index r = 0; r < rows; ++r) {
      double sum = 0;
      for (Index c = 0; c < cols; ++c) {
        sum += double(w.at(0, r, c)) * double(along_cols.at(0, f, c));
      }
      CHECK_THAT(std::abs(double(gathered.at(0, r, f)) - sum) < rounding, r, " ", f);
    }
    for (Index c = 0; c < cols; ++c) {
      double sum = 1;
      for (Index r = 0; r < rows; ++r) {
        sum += double(w.at(0, r, c)) * double(along_rows.at(0, r, f));
      }
      CHECK_THAT(std::abs(double(out.at(0, f, c)) - sum) < rounding, f, " ", c);
    }
  }
}

// A preconditioner that knows nothing of the function.
struct Plain {
  void apply(Matrix<double>&) const {}
};

// A valley along which the curvature is a thousandth of that across.
double valley(const Matrix<double>& x, Matrix<double>& gradient) {
  const double along = x(0, 0) + x(0, 1) - 3, across = x(0, 0) - x(0, 1) - 1;
  gradient.resize(1, 2);
  gradient << 1e-3 * along + across, 1e-3 * along - across;
  return (1e-3 * along * along + across * across) / 2;
}

// The divergence of a row and its sink from a target by their definition; a sink of -inf is none.
double slow_divergence(const std::vector<double>& target, double of_sink,
                       const std::vector<double>& logits, double sink) {
  double sum = std::exp(sink), total = 0;
  for (const double s : logits) sum += std::exp(s);
  for (std::size_t j = 0; j < target.size(); ++j) {
    if (target[j] > 0) total += target[j] * std::log(target[j] * sum / std::exp(logits[j]));
  }
  return total + (of_sink > 0 ? of_sink * std::log(of_sink * sum / std::exp(sink)) : 0);
}

template <class T>
void check_divergence(Index cols, double of_sink, double sink) {
  Numbers numbers(11);
  const Index padded = round_up(cols, simd::lanes<T>);
  Buffer<T> rows;
  T* x = rows.ensure(2 * padded);
  T* a = x + padded;
  std::fill_n(x, padded, T(-infinity));
  std::fill_n(a, padded, T(0));
  std::vector<double> logits, target;
  double total = 0, entropy = 0;
  for (Index j = 0; j < cols; ++j) {
    x[j] = static_cast<T>(3 * numbers.next());
    logits.push_back(static_cast<double>(x[j]));
    target.push_back(j % 3 == 2 ? 0 : std::exp(numbers.next()));
    total += target.back();
  }
  for (Index j = 0; j < cols; ++j) {
    double& share = target[static_cast<std::size_t>(j)];
    share /= total;
    if (share > 0) entropy -= share * std::log(share);
    share *= 1 - of_sink;
    a[j] = static_cast<T>(share);
  }
  const double want = slow_divergence(target, of_sink, logits, sink);
  const double got = descent::to_difference(x, a, padded, entropy, {sink, std::log(of_sink)});
  const double rounding = sizeof(T) == 4 ? 1e-5 : 1e-13;
  CHECK_THAT(std::abs(got - want) < rounding * (1 + want), cols, ": ", got, " for ", want);
  double sum = std::exp(sink);
  for (const double s : logits) sum += std::exp(s);
  for (Index j = 0; j < cols; ++j) {
    const auto at = static_cast<std::size_t>(j);
    const double weight = std::exp(logits[at]) / sum;
    CHECK(std::abs(static_cast<double>(x[j]) - weight) < rounding);
    CHECK(std::abs(static_cast<double>(a[j]) - (weight - target[at])) < rounding);
  }
}

}  // namespace

TEST(sums_of_features) {
  for (const auto& [rows, count, cols] :
       {std::array<Index, 3>{1, 4, 1}, {3, 8, 17}, {24, 4, 1100}, {7, 36, 64}, {12, 12, 2050}}) {
    check_sums<float>(rows, count, cols);
    check_sums<double>(rows, count, cols);
  }
}

TEST(divergence_of_a_row) {
  for (const Index cols : {1, 5, 130, 700}) {
    check_divergence<float>(cols, 0, -infinity);
    check_divergence<double>(cols, 0, -infinity);
    check_divergence<float>(cols, 0.2, 1.5);
    check_divergence<double>(cols, 0.2, 1.5);
  }
}

TEST(a_valley_is_followed_to_its_end) {
  const Plain plain;
  descent::LineSearch<double, Plain> search(Matrix<double>::Zero(1, 2), 5, plain);
  search.evaluate_here(valley);
  int steps = 0;
  for (double before = search.value(); search.value() > 1e-20; ++steps) {
    CHECK(search.advance(valley, 0, [](double) { return false; }));
    CHECK(search.value() < before);
    before = search.value();
    if (steps == 20) break;
  }
  CHECK_THAT(steps <= 12, steps);
  CHECK(std::abs(search.point()(0, 0) - 2) < 1e-6 && std::abs(search.point()(0, 1) - 1) < 1e-6);
}

TEST(a_step_that_overflows_is_shortened) {
  const Plain plain;
  descent::LineSearch<double, Plain> search(Matrix<double>::Constant(1, 1, 0.5), 5, plain);
  int overflows = 0;
  const auto wall = [&](const Matrix<double>& x, Matrix<double>& gradient) {
    if (x(0, 0) < 0) {
      ++overflows;
      throw NonFiniteError("a logarithm of a negative number");
    }
    gradient.resize(1, 1);
    gradient(0, 0) = 10 - 1 / x(0, 0);
    return 10 * x(0, 0) - std::log(x(0, 0));
  };
  search.evaluate_here(wall);
  for (int step = 0; step < 10; ++step) search.advance(wall, 0, [](double) { return false; });
  CHECK_THAT(std::abs(search.point()(0, 0) - 0.1) < 1e-6, search.point()(0, 0));
  CHECK(overflows > 0);
  // Where the caller gives up after the first length, the point stays.
  descent::LineSearch<double, Plain> other(Matrix<double>::Constant(1, 1, 0.5), 5, plain);
  other.evaluate_here(wall);
  CHECK(!other.advance(wall, 0, [](double gain) { return gain > 0; }));
  CHECK(other.point()(0, 0) == 0.5 && other.evaluations() == 2);
}

TEST(limits_say_why_a_descent_ends) {
  DescentLimits limits;
  limits.max_steps = 9;
  limits.window = 2;
  limits.tolerance = 0.1;
  limits.enough = 0.01;
  limits.time_limit = 5;
  using Status = DescentStatus;
  CHECK(!limits.ending(1, {4, 2}, 1));
  CHECK(!limits.ending(2, {4, 2, 1}, 1));
  CHECK(limits.ending(2, {1.05, 1.02, 1}, 1) == Status::Converged);
  CHECK(!limits.ending(2, {1.05, 1.02, 1}, 1, 1));  // the first step that counts is too late
  CHECK(limits.ending(2, {4, 2, 0.01}, 1) == Status::Enough);
  CHECK(limits.ending(9, {4, 2, 1}, 1) == Status::StepLimit);
  CHECK(limits.ending(2, {4, 2, 1}, 6) == Status::TimeLimit);
  limits.progress = [](Index, double mean) { return mean > 3; };
  CHECK(limits.ending(2, {4, 2, 1}, 1) == Status::Stopped);
  limits.window = 0;
  CHECK_THROWS(InputError, "window must be at least 1", limits.check());
  limits.window = 1;
  limits.enough = std::nan("");
  CHECK_THROWS(InputError, "must not be nan", limits.check());
}
