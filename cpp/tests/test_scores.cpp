// The microkernel and the stream of logits against loops that anybody can read.
#include "check.hpp"
#include "headfit/scores/pack.hpp"
#include "problem.hpp"

using namespace headfit;
using namespace headfit::test;

template <class T>
void check_microkernel() {
  using B = Blocking<T>;
  Numbers numbers(5);
  for (const Index depth : {0, 1, 2, 3, 7, 64, 129}) {
    const auto a = Stack<T>::random(1, B::row_group, std::max<Index>(depth, 1), numbers);
    const auto b = Stack<T>::random(1, std::max<Index>(depth, 1), B::panel, numbers);
    for (const bool accumulate : {false, true}) {
      Stack<T> c = Stack<T>::random(1, B::row_group, B::panel + 3, numbers);
      const Stack<T> before = c;
      multiply_panel<T>(depth, {a.data.data(), a.cols, 1}, b.data.data(), c.data.data(), c.cols,
                        accumulate);
      for (Index r = 0; r < B::row_group; ++r) {
        for (Index j = 0; j < c.cols; ++j) {
          double want = before.at(0, r, j), size = std::abs(want);
          if (j < B::panel) {
            if (!accumulate) want = size = 0;
            for (Index p = 0; p < depth; ++p) {
              const double term = double(a.at(0, r, p)) * double(b.at(0, p, j));
              want += term;
              size += std::abs(term);
            }
          }
          const double unit = double(std::numeric_limits<T>::epsilon());
          CHECK_THAT(std::abs(double(c.at(0, r, j)) - want) <= double(depth + 1) * unit * size,
                     "depth ", depth, " row ", r, " column ", j);
        }
      }
    }
  }
}

TEST(microkernel_float) { check_microkernel<float>(); }
TEST(microkernel_double) { check_microkernel<double>(); }

// Logits within the bound that the certificate uses, and -inf exactly where masked.
template <class T>
void check_logits() {
  for_all_problems<T>([](const Problem<T>& p, const std::string& where) {
    const LogitSource<T> source = p.source();
    Stack<T> first(p.heads, source.row_count(), p.m, T(-7));
    attention_logits(source, first.out(), {1, {}});
    for (const int threads : {2, 3}) {
      Stack<T> again(p.heads, source.row_count(), p.m, T(-8));
      attention_logits(source, again.out(), {threads, {}});
      CHECK_THAT(again.data == first.data, where, ", ", threads, " threads");
    }
    const double u = double(std::numeric_limits<T>::epsilon()) / 2;
    for (Index h = 0; h < p.heads; ++h) {
      for (Index place = 0; place < source.row_count(); ++place) {
        const Index i = source.row_at(place);
        for (Index j = 0; j < p.m; ++j) {
          const double want = p.logit(h, i, j);
          const double got = double(first.at(h, place, j));
          const double size =
              std::abs(p.scale) * p.norm(p.q, h, i) * p.norm(p.k, h / p.group, j);
          // A few roundings more for the cap and the bias.
          const double bound = double(p.d + 2) * u * size * 1.01 + 16 * u * (1 + p.softcap);
          const bool right = want == -infinity ? got == want : std::abs(got - want) <= bound;
          CHECK_THAT(right, where, ", head ", h, " row ", i, " column ", j, ": ", got, " for ", want);
        }
      }
    }
  });
}

TEST(logits_float) { check_logits<float>(); }
TEST(logits_double) { check_logits<double>(); }

TEST(a_block_of_rows_sees_the_columns_of_its_mask_only) {
  // NaN in keys that no row may see through key_lengths; values beyond are never read.
  Numbers numbers(9);
  Problem<float> p(2, 1, 70, 300, 4, numbers);
  p.key_lengths = {100, 0};
  p.mask.key_lengths = p.key_lengths.data();
  for (Index j = 100; j < 300; ++j) p.k.at(0, j, 0) = std::nanf("");
  for (Index j = 0; j < 300; ++j) p.k.at(1, j, 3) = std::nanf("");
  Stack<float> out(2, 70, 300, 1.0f);
  attention_matrix(p.source(), out.out(), {2, {}});
  for (Index i = 0; i < 70; ++i) {
    double sum = 0;
    for (Index j = 0; j < 300; ++j) {
      sum += double(out.at(0, i, j));
      CHECK(out.at(1, i, j) == 0);
      if (j >= 100) CHECK(out.at(0, i, j) == 0);
    }
    CHECK(std::abs(sum - 1) < 1e-5);
  }
}

TEST(non_finite_input_names_the_place) {
  for (const int threads : {1, 2, 3}) {
    const Run run{threads, {}};
    Numbers numbers(3);
    Problem<double> p(2, 1, 90, 80, 3, numbers);
    Stack<double> out(2, 90, 80);
    p.k.at(1, 70, 2) = infinity;
    CHECK_THROWS(NonFiniteError, "K must be finite; got inf at head 1, row 70, column 2",
                 attention_logits(p.source(), out.out(), run));
    p.k.at(1, 70, 2) = 0;
    p.q.at(1, 88, 0) = -infinity;
    p.q.at(0, 60, 1) = std::nan("");
    CHECK_THROWS(NonFiniteError, "Q must be finite; got nan at head 0, row 60, column 1",
                 attention_logits(p.source(), out.out(), run));
    p.q.at(1, 88, 0) = p.q.at(0, 60, 1) = 0;
    p.q.at(0, 50, 0) = 1e200;
    p.k.at(0, 33, 0) = 1e200;
    CHECK_THROWS(NonFiniteError, "got inf at head 0, row 50, column 33",
                 attention_logits(p.source(), out.out(), run));
    p.mask.right = -31;  // column 33 is now beyond what row 50 may see
    attention_logits(p.source(), out.out(), run);
  }
}

TEST(bad_arguments) {
  Numbers numbers(4);
  Problem<float> p(2, 1, 4, 4, 3, numbers);
  Stack<float> out(2, 4, 4);
  const auto run_with = [&](auto change) {
    LogitSource<float> source = p.source();
    change(source);
    attention_logits(source, out.out(), {1, {}});
  };
  CHECK_THROWS(InputError, "same head size", run_with([](auto& s) { s.k.cols = 2; }));
  CHECK_THROWS(InputError, "divide", run_with([](auto& s) { s.group = 2; }));
  CHECK_THROWS(InputError, "scale", run_with([](auto& s) { s.scale = 0; }));
  CHECK_THROWS(InputError, "scale", run_with([](auto& s) { s.scale = 1e-40; }));
  CHECK_THROWS(InputError, "scale", run_with([](auto& s) { s.scale = std::nan(""); }));
  CHECK_THROWS(InputError, "softcap", run_with([](auto& s) { s.softcap = -1; }));
  const std::vector<Index> rows = {1, 4};
  CHECK_THROWS(InputError, "rows must lie in 0 ... 3; got 4 at place 1",
               run_with([&](auto& s) { s.rows = std::span<const Index>(rows); }));
}
