// Hot loops do not allocate: twice as many rows, tiles or steps make no more allocations, except
// for buffers that grow.
//
// The linker sends the C library's allocation functions here (CMakeLists.txt), so that Eigen's are
// counted too.
#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

#include "check.hpp"
#include "headfit/base/worker_pool.hpp"
#include "headfit/certify/certificate.hpp"
#include "headfit/learned/descent.hpp"
#include "headfit/max_margin/max_margin.hpp"
#include "headfit/projection/projection.hpp"
#include "problem.hpp"
#include "sample.hpp"

namespace {
std::atomic<long> allocations{0};
constexpr long any_number = std::numeric_limits<long>::max();
thread_local long allowed = any_number;  // how many more calls of malloc succeed on this thread
}  // namespace

extern "C" {
void* __real_malloc(std::size_t size);
void* __real_calloc(std::size_t count, std::size_t size);
void* __real_realloc(void* old, std::size_t size);
void* __wrap_malloc(std::size_t size) {
  return ++allocations, allowed-- > 0 ? __real_malloc(size) : nullptr;
}
void* __wrap_calloc(std::size_t count, std::size_t size) {
  return ++allocations, __real_calloc(count, size);
}
void* __wrap_realloc(void* old, std::size_t size) {
  return ++allocations, __real_realloc(old, size);
}
}

// These must not be inlined, or GCC warns that `new` and `delete` do not match.
[[gnu::noinline]] void* operator new(std::size_t n) {
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

using namespace headfit;
using namespace headfit::test;

namespace {

const Run here{1, {}};  // threads would allocate their stacks

template <class Work>
long allocations_of(const Work& work) {
  const long before = allocations;
  work();
  return allocations - before;
}

// Checks that work(2 n) allocates no more often than work(n), for n rows and keys.
template <class Work>
void check_the_same_for_twice_as_many(const char* name, Index n, const Work& work) {
  work(n);  // makes the allocations that a process makes only once
  const long few = allocations_of([&] { work(n); });
  const long many = allocations_of([&] { work(2 * n); });
  constexpr long doublings = 2;  // of buffers that hold a row or a block
  CHECK_THAT(many <= few + doublings, name, ": ", few, " for ", n, " rows, ", many,
             " for twice as many");
}

// Calls f(name, n, few, many) for every kind of mask and bias, with problems of n and 2 n rows.
template <class T, class F>
void for_masks(const F& f) {
  for (const Masking<T>& masking : all_masks<T>()) {
    const auto make = [&](Index n) {
      Numbers numbers(7);
      Problem<T> problem(1, 1, n, n, 19, numbers);
      masking.put(problem, numbers);
      return problem;
    };
    constexpr Index n = 480;
    const Problem<T> few = make(n), many = make(2 * n);
    f(masking.name, n, few, many);
  }
}

template <class T>
void check_reading() {
  for_masks<T>([](const char* mask, Index n, const Problem<T>& few, const Problem<T>& many) {
    Stack<T> matrix(1, 2 * n, 2 * n), values(1, 2 * n, 24), top(1, 2 * n, 5);
    Stack<Offset> columns(1, 2 * n, 5);
    Vector<double> numbers(2 * n);
    std::vector<Offset> counts(static_cast<std::size_t>(2 * n));
    const std::vector<double> shares{0.5};
    const StatsOut stats{numbers.data(), numbers.data(), numbers.data(), counts.data(), shares};
    const auto check = [&](const char* name, const auto& work) {
      const std::string what = text(name, ", mask ", mask, ", ", 8 * sizeof(T), " bits");
      check_the_same_for_twice_as_many(what.c_str(), n, [&](Index rows) {
        work((rows == n ? few : many).source());
      });
    };
    using Source = LogitSource<T>;
    check("logits", [&](const Source& s) { attention_logits(s, matrix.out(), here); });
    check("matrix", [&](const Source& s) { attention_matrix(s, matrix.out(), here); });
    check("topk", [&](const Source& s) { attention_topk(s, 5, columns.out(), top.out(), here); });
    check("topk of logits",
          [&](const Source& s) { attention_topk_logits(s, 5, columns.out(), top.out(), here); });
    check("apply", [&](const Source& s) {
      const Heads<T> v{values.data.data(), 1, s.k.rows, 24, 0, 24};
      attention_apply(s, v, matrix.out(), here);
    });
    check("stats", [&](const Source& s) { attention_stats(s, stats, here); });
  });
}

struct Judged {
  OwnedTarget target;
  Stack<float> q, k;
  Judged(Index n, Numbers& numbers)
      : target(regular_target(n, 4, 1)),
        q(Stack<float>::random(1, n, 19, numbers, 3)),
        k(Stack<float>::random(1, n, 19, numbers, 3)) {}
};

}  // namespace

TEST(a_pool_goes_on_with_the_threads_that_it_could_start) {
  for (const int memory : {1, 2, 3, 4}) {  // the list of threads, and then each thread
    allowed = memory;
    WorkerPool pool(3);
    allowed = any_number;
    std::atomic<int> calls{0};
    pool.run(3, [&] { ++calls; });
    CHECK(calls >= 1 && calls <= memory);
  }
}

TEST(tiles_of_a_scan_in_float_allocate_nothing) { check_reading<float>(); }
TEST(tiles_of_a_scan_in_double_allocate_nothing) { check_reading<double>(); }

TEST(rows_of_a_certificate_allocate_nothing) {
  constexpr Index n = 480;
  Numbers numbers(3);
  Judged few(n, numbers), many(2 * n, numbers);
  for (const bool mass : {false, true}) {
    check_the_same_for_twice_as_many(mass ? "with mass" : "compared", n, [&](Index rows) {
      Judged& x = rows == n ? few : many;
      LogitSource<float> source;
      source.q = x.q.view();
      source.k = x.k.view();
      source.scale = 0.3;
      certify_logits(x.target.view(), source, Tolerances{}, CertifyOptions{.mass = mass}, here);
    });
  }
}

TEST(steps_of_a_descent_allocate_nothing) {
  using namespace headfit::learned;
  const OwnedTarget target = regular_target(300, 4, 2);
  const Requirements required(target.view(), {0.05, 0.1});
  const Settings settings = Settings::for_rows(300, required.mean_support(), 0.1);
  Descent descent(required, 9, settings, 1, std::numeric_limits<float>::infinity(), here);
  const auto steps = [&](int count) {
    for (int step = 0; step < count; ++step) descent.step(0.05f);
  };
  descent.start_randomly(0);
  const auto listed = [&] {
    descent.scan(Columns::Sampled);
    descent.transpose_lists();
  };
  listed();
  steps(2);
  CHECK_THAT(allocations_of([&] { steps(50); }) == 0, "steps");
  const long one_scan = allocations_of(listed);
  steps(50);
  CHECK_THAT(allocations_of(listed) <= one_scan, "scans");
}

TEST(queries_of_max_margin_allocate_what_they_return) {
  constexpr Index n = 384, d = 40;
  const Matrix<double> keys = Matrix<double>::Random(n, d).rowwise().normalized();
  const MatrixView<double> view(keys.data(), n, d, RowStride(d));
  const auto queries = [&](Index filled) {
    OwnedTarget target;
    const OwnedTarget whole = regular_target(n, 2, 3, true);
    for (Index i = 0; i < n; ++i) {
      const auto columns = whole.view().row_columns(i);
      if (i < filled) {
        target.row({columns.begin(), columns.end()}, {0.5, 0.5});
      } else {
        target.row({}, {});
      }
    }
    MaxMarginRows found;
    const long count = allocations_of(
        [&] { found = max_margin_queries(target.view(), view, {0.05, 0.1}, {}, here); });
    for (Index i = 0; i < filled; ++i) {
      CHECK(found.status[static_cast<std::size_t>(i)] == RowStatus::Optimal);
    }
    return std::pair(count, found.scans);
  };
  queries(n / 4);
  const auto [few, few_scans] = queries(n / 2);
  const auto [many, many_scans] = queries(n);
  // Each scan allocates its fold; rows allocate nothing.
  const double each_scan = static_cast<double>(few) / static_cast<double>(few_scans);
  CHECK_THAT(static_cast<double>(many) <= each_scan * static_cast<double>(many_scans) + n / 8, few,
             " in ", few_scans, " scans for half of the rows, ", many, " in ", many_scans,
             " for all");
}

TEST(rows_of_a_projection_allocate_nothing) {
  const OwnedTarget few = regular_target(480, 4, 1), many = regular_target(960, 4, 1);
  Matrix<float> q(960, 300), k(960, 300);
  for (const Sketch kind : {Sketch::gaussian, Sketch::rademacher}) {
    check_the_same_for_twice_as_many("projection", 480, [&](Index n) {
      project_identity<float>((n == 480 ? few : many).view(), {0.4, 9.0}, {kind, 1, 1.0},
                              q.topRows(n), k.topRows(n), here);
    });
  }
}
