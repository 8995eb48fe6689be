// Random attention problems, their masks, and a slow reference for their logits.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.hpp"
#include "headfit/attention/attention.hpp"
#include "headfit/random/philox.hpp"

namespace headfit::test {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Numbers in (-1, 1), the same on every machine.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : reader_(seed, 0) {}
  double next() { return (static_cast<double>(reader_.next()) + 0.5) / 2147483648.0 - 1; }
  Index below(Index bound) { return reader_.below(static_cast<std::uint32_t>(bound)); }

 private:
  PhiloxReader reader_;
};

template <class T>
struct Stack {
  Index count, rows, cols;
  std::vector<T> data;

  Stack(Index heads, Index n, Index d, T value, std::vector<T> values)
      : count(heads), rows(n), cols(d), data(std::move(values)) {
    data.resize(static_cast<std::size_t>(heads * n * d), value);
  }
  Stack(Index heads, Index n, Index d, T value = T(0))
      : count(heads), rows(n), cols(d), data(static_cast<std::size_t>(heads * n * d), value) {}
  static Stack random(Index heads, Index n, Index d, Numbers& numbers, double size = 1) {
    Stack s(heads, n, d);
    for (T& x : s.data) x = static_cast<T>(size * numbers.next());
    return s;
  }
  T& at(Index h, Index i, Index j) {
    return data[static_cast<std::size_t>((h * rows + i) * cols + j)];
  }
  T at(Index h, Index i, Index j) const {
    return data[static_cast<std::size_t>((h * rows + i) * cols + j)];
  }
  Heads<T> view() const { return {data.data(), count, rows, cols, rows * cols, cols}; }
  OutHeads<T> out() { return {data.data(), rows * cols, cols}; }
};

// A problem that owns everything that its views point to.
template <class T>
struct Problem {
  Index heads, group, n, m, d;
  Stack<T> q, k;
  double scale;
  double softcap = 0;
  Mask mask;
  std::unique_ptr<bool[]> dense;
  std::vector<Offset> sparse_offsets;
  std::vector<Column> sparse_columns;
  std::vector<Index> key_lengths;
  std::vector<T> bias;
  std::unique_ptr<bool[]> keys;
  std::vector<double> sinks;
  std::vector<Index> rows;
  bool some_rows = false;

  Problem(Index heads_, Index group_, Index n_, Index m_, Index d_, Numbers& numbers)
      : heads(heads_),
        group(group_),
        n(n_),
        m(m_),
        d(d_),
        q(Stack<T>::random(heads_, n_, d_, numbers, 3)),
        k(Stack<T>::random(heads_ / group_, m_, d_, numbers, 3)),
        scale(1 / std::sqrt(static_cast<double>(d_))) {}

  LogitSource<T> source() const {
    LogitSource<T> s;
    s.q = q.view();
    s.k = k.view();
    s.group = group;
    s.scale = scale;
    s.softcap = softcap;
    s.mask = mask;
    if (!bias.empty()) s.bias = {bias.data(), n * m, m, 1};
    if (!sinks.empty()) s.sinks = sinks.data();
    if (some_rows) s.rows = std::span<const Index>(rows);
    return s;
  }

  // The logit in double; -inf where it is masked.
  double logit(Index h, Index i, Index j) const {
    if (!mask.allows(h, i, j, n, m)) return -infinity;
    double sum = 0;
    for (Index p = 0; p < d; ++p) {
      sum += static_cast<double>(q.at(h, i, p)) * static_cast<double>(k.at(h / group, j, p));
    }
    double s = scale * sum;
    if (softcap > 0) s = softcap * std::tanh(s / softcap);
    const auto place = static_cast<std::size_t>((h * n + i) * m + j);
    if (!bias.empty()) s += static_cast<double>(bias[place]);
    return s;
  }
  double norm(const Stack<T>& x, Index h, Index i) const {
    double sum = 0;
    for (Index p = 0; p < d; ++p) sum += std::pow(static_cast<double>(x.at(h, i, p)), 2);
    return std::sqrt(sum);
  }
};

// A kind of mask, as a function that gives it to a problem.
template <class T>
struct Masking {
  const char* name;
  std::function<void(Problem<T>&, Numbers&)> put;
};

template <class T>
void put_dense(Problem<T>& p, Numbers& numbers) {
  const Index size = p.heads * p.n * p.m;
  p.dense = std::make_unique<bool[]>(static_cast<std::size_t>(std::max<Index>(size, 1)));
  for (Index i = 0; i < size; ++i) p.dense[static_cast<std::size_t>(i)] = numbers.next() < 0.2;
  // Row 1 of the first head may attend to nothing.
  if (p.n > 1) std::fill_n(p.dense.get() + p.m, p.m, false);
  p.mask.dense = p.dense.get();
  p.mask.dense_head = p.n * p.m;
  p.mask.dense_row = p.m;
  p.mask.dense_col = 1;
}

template <class T>
void put_keys(Problem<T>& p, Numbers& numbers) {
  const Index size = p.heads * p.m;
  p.keys = std::make_unique<bool[]>(static_cast<std::size_t>(std::max<Index>(size, 1)));
  for (Index i = 0; i < size; ++i) p.keys[static_cast<std::size_t>(i)] = numbers.next() < 0.4;
  p.mask.keys = p.keys.get();
  p.mask.keys_head = p.m;
  p.mask.keys_col = 1;
}

// With a share of about 0.03, entries are computed one by one.
template <class T>
void put_sparse(Problem<T>& p, Numbers& numbers, double share) {
  p.sparse_offsets = {0};
  for (Index i = 0; i < p.n; ++i) {
    for (Index j = 0; j < p.m; ++j) {
      if (numbers.next() < 2 * share - 1) p.sparse_columns.push_back(static_cast<Column>(j));
    }
    p.sparse_offsets.push_back(static_cast<Offset>(p.sparse_columns.size()));
  }
  p.mask.sparse_offsets = p.sparse_offsets.data();
  p.mask.sparse_columns = p.sparse_columns.data();
}

// The sparse mask of a problem as a dense one.
template <class T>
void make_dense(Problem<T>& p) {
  p.dense = std::make_unique<bool[]>(static_cast<std::size_t>(p.n * p.m));
  for (Index i = 0; i < p.n; ++i) {
    for (Index j = 0; j < p.m; ++j) {
      p.dense[static_cast<std::size_t>(i * p.m + j)] = p.mask.allows(0, i, j, p.n, p.m);
    }
  }
  p.mask = {};
  p.mask.dense = p.dense.get();
  p.mask.dense_row = p.m;
  p.mask.dense_col = 1;
}

template <class T>
void put_lengths(Problem<T>& p, Numbers& numbers) {
  for (Index h = 0; h < p.heads; ++h) p.key_lengths.push_back(numbers.below(p.m + 1));
  p.mask.key_lengths = p.key_lengths.data();
}

template <class T>
void put_bias(Problem<T>& p, Numbers& numbers) {
  p.bias.resize(static_cast<std::size_t>(p.heads * p.n * p.m));
  for (T& b : p.bias) {
    const double x = numbers.next();
    b = x < -0.5 ? -std::numeric_limits<T>::infinity() : static_cast<T>(x);
  }
}

template <class T>
std::vector<Masking<T>> all_masks() {
  using P = Problem<T>;
  return {
      {"none", [](P&, Numbers&) {}},
      {"causal", [](P& p, Numbers&) { p.mask.right = 0; }},
      {"window", [](P& p, Numbers&) { p.mask.left = 3, p.mask.right = 0; }},
      {"two-sided window", [](P& p, Numbers&) { p.mask.left = 5, p.mask.right = 20; }},
      {"dense", put_dense<T>},
      {"sparse", [](P& p, Numbers& numbers) { put_sparse(p, numbers, 0.35); }},
      {"few entries", [](P& p, Numbers& numbers) { put_sparse(p, numbers, 0.03); }},
      {"few entries, window, keys, lengths, bias, softcap, rows",
       [](P& p, Numbers& numbers) {
    put_sparse(p, numbers, 0.03);
    put_keys(p, numbers);
    put_lengths(p, numbers);
    put_bias(p, numbers);
    p.mask.left = p.m / 2;
    p.softcap = 3;
    p.some_rows = true;
    for (Index i = p.n - 1; i >= 0; i -= 2) p.rows.push_back(i);
  }},
      {"lengths", put_lengths<T>},
      {"keys", put_keys<T>},
      {"bias", put_bias<T>},
      {"softcap", [](P& p, Numbers&) { p.softcap = 1.5; }},
      {"causal, lengths, bias, softcap",
       [](P& p, Numbers& numbers) {
    p.mask.right = 0;
    p.softcap = 2;
    put_lengths(p, numbers);
    put_bias(p, numbers);
  }},
      {"window, dense, rows",
       [](P& p, Numbers& numbers) {
    p.mask.left = 40, p.mask.right = 2;
    put_dense(p, numbers);
    p.some_rows = true;
    for (Index i = p.n - 1; i >= 0; i -= 2) p.rows.push_back(i);
    if (p.n > 0) p.rows.push_back(0);
  }},
  };
}

// The sizes n, m, d of the problems. They end before, at and after the ends of blocks and panels.
inline const std::vector<std::array<Index, 3>>& sizes() {
  static const std::vector<std::array<Index, 3>> all = {{1, 1, 1},     {2, 3, 1},    {7, 33, 3},
                                                        {63, 64, 5},   {64, 65, 8},  {65, 31, 64},
                                                        {30, 300, 17}, {300, 30, 2}, {25, 513, 9},
                                                        {0, 5, 2},     {5, 0, 2}};
  return all;
}

// Calls f(problem, where) for every size, mask and grouping.
template <class T, class F>
void for_all_problems(F&& f) {
  std::uint64_t seed = 0;
  for (const auto& [n, m, d] : sizes()) {
    for (const Masking<T>& masking : all_masks<T>()) {
      for (const Index group : {Index(1), Index(2)}) {
        Numbers numbers(++seed);
        Problem<T> problem(2, group, n, m, d, numbers);
        masking.put(problem, numbers);
        f(problem, text(masking.name, ", n=", n, ", m=", m, ", d=", d, ", group=", group, ", ",
                        sizeof(T) * 8, " bits"));
      }
    }
  }
}

}  // namespace headfit::test
