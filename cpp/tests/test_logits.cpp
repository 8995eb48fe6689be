// Compares the microkernel and the stream of logits with plain loops.
#include <array>
#include <bit>

#include "check.hpp"
#include "headfit/base/best_few.hpp"
#include "headfit/logits/stream.hpp"
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
      const auto multiply = accumulate ? &multiply_panel<Product::added, T, RowGroup<T>>
                                       : &multiply_panel<Product::stored, T, RowGroup<T>>;
      multiply(1, depth, {a.data.data(), a.cols}, b.data.data(), c.data.data(), c.cols);
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

// Logits must lie within the bound that the certificate uses, and be -inf exactly where masked.
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
          const double size = std::abs(p.scale) * p.norm(p.q, h, i) * p.norm(p.k, h / p.group, j);
          // The soft cap and the bias add a few roundings.
          const double bound = double(p.d + 2) * u * size * 1.01 + 16 * u * (1 + p.softcap);
          const bool right = want == -infinity ? got == want : std::abs(got - want) <= bound;
          CHECK_THAT(right, where, ", head ", h, " row ", i, " column ", j, ": ", got, " for ",
                     want);
        }
      }
    }
  });
}

TEST(logits_float) { check_logits<float>(); }
TEST(logits_double) { check_logits<double>(); }

// Logits that are asked for have the bits of those that are streamed.
template <class T>
void check_reader() {
  for_all_problems<T>([](const Problem<T>& p, const std::string& where) {
    constexpr Index most = 20;
    const LogitSource<T> source = p.source();
    Stack<T> streamed(p.heads, source.row_count(), p.m, T(-7));
    attention_logits(source, streamed.out(), {1, {}});
    const PackedKeys<T> keys(source, 0, source.k.count, {1, {}});
    LogitReader<T> reader(source, keys);
    const Index stride = round_up(p.m, Blocking<T>::panel);
    Buffer<T> rows;
    T* asked = rows.ensure(round_up(most, Blocking<T>::row_group) * stride);
    for (Index h = 0; h < p.heads; ++h) {
      for (Index first = 0; first < source.row_count(); first += most) {
        const Index count = std::min(most, source.row_count() - first);
        reader.read({h, first, count, 0, p.m}, asked, stride);
        for (Index r = 0; r < count; ++r) {
          const T* want = streamed.data.data() + (h * source.row_count() + first + r) * p.m;
          const bool is_same = std::equal(want, want + p.m, asked + r * stride);
          CHECK_THAT(is_same, where, ", head ", h, " row ", first + r);
        }
      }
    }
  });
}

TEST(asked_logits_float) { check_reader<float>(); }
TEST(asked_logits_double) { check_reader<double>(); }

// What the stream tells a fold that asks for logits above a limit: all hits of each row, and the
// least logits. With `moving` the limit of a row is the largest logit so far.
template <class T>
struct Hits {
  struct Hit {
    Index col;
    T value;
    bool operator==(const Hit&) const = default;
  };
  std::vector<std::vector<Hit>> rows;
  std::vector<T> least;
};

template <class T>
class HitFold {
 public:
  HitFold(Index rows, T limit, bool moving, Hits<T>& out)
      : rows_(rows), limit_(limit), moving_(moving), out_(out) {}

  void begin(const RowBlock& block) {
    const Index padded = round_up(block.count, Blocking<T>::row_group);
    limits_.assign(std::size_t(padded), T(infinity));
    std::fill_n(limits_.begin(), block.count, limit_);
    lowest_.assign(std::size_t(padded * simd::lanes<T>), T(infinity));
  }
  const T* limits(const RowBlock&) const { return limits_.data(); }
  T* lowest(const RowBlock&) { return lowest_.data(); }
  void hits(const RowBlock& block, Index r, Index col, const T* logits, std::uint32_t bits) {
    for (; bits; bits &= bits - 1) {
      const int b = std::countr_zero(bits);
      if (moving_ && !(logits[b] > limits_[std::size_t(r)])) continue;
      out_.rows[at(block, r)].push_back({col + b, logits[b]});
      if (moving_) limits_[std::size_t(r)] = logits[b];
    }
  }
  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      const auto first = lowest_.begin() + r * simd::lanes<T>;
      out_.least[at(block, r)] = *std::min_element(first, first + simd::lanes<T>);
    }
  }

 private:
  std::size_t at(const RowBlock& block, Index r) const {
    return std::size_t(block.head * rows_ + block.first + r);
  }
  Index rows_;
  T limit_;
  bool moving_;
  Hits<T>& out_;
  std::vector<T> limits_, lowest_;
};

template <class T>
void check_hits() {
  for_all_problems<T>([](const Problem<T>& p, const std::string& where) {
    const LogitSource<T> source = p.source();
    Stack<T> logits(p.heads, source.row_count(), p.m);
    attention_logits(source, logits.out(), {1, {}});
    const auto rows = std::size_t(p.heads * source.row_count());
    for (const bool moving : {false, true}) {
      for (const T limit : {T(-infinity), T(0), T(1.5), T(infinity)}) {
        Hits<T> want;
        for (std::size_t i = 0; i < rows; ++i) {
          want.rows.emplace_back();
          want.least.push_back(T(infinity));
          T above = limit;
          for (Index j = 0; j < p.m; ++j) {
            const T x = logits.data[i * std::size_t(p.m) + std::size_t(j)];
            if (x > T(-infinity)) want.least.back() = std::min(want.least.back(), x);
            if (!(x > above)) continue;
            want.rows.back().push_back({j, x});
            if (moving) above = x;
          }
        }
        for (const int threads : {1, 3}) {
          Hits<T> got{decltype(want.rows)(rows), std::vector<T>(rows)};
          stream_tiles(source, Run{threads, {}},
                       [&] { return HitFold<T>(source.row_count(), limit, moving, got); });
          CHECK_THAT(got.rows == want.rows, where, ", limit ", limit, moving ? ", moving" : "");
          CHECK_THAT(got.least == want.least, where, ", limit ", limit);
        }
      }
    }
  });
}

TEST(hits_float) { check_hits<float>(); }
TEST(hits_double) { check_hits<double>(); }

// A fold that takes entries, and counts the rows that came so and the tiles.
template <class T>
struct EntryFold {
  Stack<T>& out;
  Index& rows;
  Index& tiles;

  void begin(const RowBlock&) {}
  void tile(const RowBlock&, const Tile<T>&) { ++tiles; }
  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    ++rows;
    CHECK(block.by_entries && std::ranges::is_sorted(entries.columns));
    for (Index c = 0; c < entries.count(); ++c) {
      out.at(block.head, block.first + r, entries.column(c)) = entries.data[c];
    }
    for (Index c = entries.count(); c < entries.padded(); ++c) {
      CHECK(entries.data[c] == -infinity);
    }
  }
  void end(const RowBlock&) {}
};

template <class T>
void check_entries() {
  Numbers numbers(11);
  for (const Index d : {Index(1), Index(5), Index(16), Index(64)}) {
    Problem<T> p(2, 2, 200, 900, d, numbers);
    put_sparse(p, numbers, 0.02);
    Stack<T> want(2, 200, 900), got(2, 200, 900, T(-infinity));
    const LogitSource<T> source = p.source();
    const PackedKeys<T> keys(source, 0, 1, {1, {}});
    LogitReader<T> reader(source, keys);
    for (Index h = 0; h < 2; ++h) {
      const Index stride = round_up(Index(900), Blocking<T>::panel);
      Buffer<T> rows;
      T* to = rows.ensure(round_up(Index(200), Blocking<T>::row_group) * stride);
      reader.read({h, 0, 200, 0, 900}, to, stride);
      for (Index i = 0; i < 200; ++i) std::copy_n(to + i * stride, 900, &want.at(h, i, 0));
    }
    Index rows = 0, tiles = 0;
    stream_tiles(source, Run{1, {}}, [&] { return EntryFold<T>{got, rows, tiles}; });
    CHECK(rows == 400 && tiles == 0);
    CHECK_THAT(got.data == want.data, "d=", d, ", ", sizeof(T) * 8, " bits");
  }
}

TEST(few_entries_have_the_bits_of_tiles_float) { check_entries<float>(); }
TEST(few_entries_have_the_bits_of_tiles_double) { check_entries<double>(); }

// Of 120 keys of a band and the first key, late rows touch three or four tiles, which take less than
// their entries do, but more if the tiles between them must be filled as well.
TEST(whole_rows_take_entries_where_masked_tiles_lie_between) {
  Numbers numbers(13);
  Problem<float> p(1, 1, 2000, 2000, 8, numbers);
  p.sparse_offsets = {0};
  for (Index i = 0; i < 2000; ++i) {
    p.sparse_columns.push_back(0);
    const Index first = std::max<Index>(1, i - 119);
    for (Index j = first; j < first + 120; ++j) {
      p.sparse_columns.push_back(static_cast<Column>(j));
    }
    p.sparse_offsets.push_back(static_cast<Offset>(p.sparse_columns.size()));
  }
  p.mask.sparse_offsets = p.sparse_offsets.data();
  p.mask.sparse_columns = p.sparse_columns.data();
  const LogitSource<float> source = p.source();
  const Index rows = WholeRows<float>::block_rows(source);
  const KeyLayouts tiles = detail::layouts_for(source, rows, false, Run{1, {}});
  CHECK(tiles.panels && !tiles.rows);
  const KeyLayouts whole = whole_row_layouts(source, Run{1, {}});
  CHECK(whole.panels && whole.rows);
}

template <class T>
void check_rows() {
  Numbers numbers(12);
  for (Index cols = 0; cols <= 40; ++cols) {
    Stack<T> x = Stack<T>::random(1, 3, cols, numbers);
    for (Index c = 0; c < cols; ++c) {
      const T kept = x.at(0, 1, c);
      x.at(0, 1, c) = T(-100 - c);
      HeadRows<T> rows(x.view());
      T largest = T(c % 2) * 200;
      CHECK(checked_row("X", rows, 0, 1, largest).size() == cols);
      CHECK(largest == std::max(T(100 + c), T(c % 2) * 200));
      for (const double bad : {std::nan(""), infinity, -infinity}) {
        x.at(0, 1, c) = static_cast<T>(bad);
        const std::string place = "row 1, column " + std::to_string(c);
        CHECK_THROWS(NonFiniteError, place, checked_row("X", rows, 0, 1, largest));
      }
      x.at(0, 1, c) = kept;
    }
  }
}

TEST(every_entry_of_a_row_is_checked_float) { check_rows<float>(); }
TEST(every_entry_of_a_row_is_checked_double) { check_rows<double>(); }

TEST(a_block_of_rows_sees_the_columns_of_its_mask_only) {
  // The keys beyond key_lengths hold NaN: no row may attend to them, so they must not be read.
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
    p.mask.right = -31;  // now row 50 may not attend to column 33
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
  for (const double bad : {std::nan(""), infinity, 1e39}) {
    const std::vector<double> sinks(8, bad);
    CHECK_THROWS(InputError, "sinks must be finite",
                 run_with([&](auto& s) { s.sinks = sinks.data(); }));
  }
  const std::vector<Index> rows = {1, 4};
  CHECK_THROWS(InputError, "rows must lie in 0 ... 3; got 4 at place 1",
               run_with([&](auto& s) { s.rows = std::span<const Index>(rows); }));
}

TEST(best_few) {
  Numbers numbers(8);
  for (const Index most : {0, 1, 3, 40}) {
    BestFew<Scored<float>> best;
    for (const Index count : {0, 2, 39, 500}) {
      best.clear(most);
      std::vector<Scored<float>> all;
      for (Index i = 0; i < count; ++i) {
        // There are only a few different values, so many are equal.
        all.push_back({static_cast<float>(std::round(4 * numbers.next())), static_cast<Column>(i)});
        best.push(all.back());
      }
      std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.before(b); });
      all.resize(std::min<std::size_t>(all.size(), static_cast<std::size_t>(most)));
      const auto& found = best.sorted();
      CHECK(found.size() == all.size());
      for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i].col == all[i].col);
    }
  }
}

TEST(masks_are_compared_by_what_they_allow) {
  constexpr Index n = 4;
  Mask causal, dense, sparse;
  causal.right = 0;
  std::array<bool, n * n> table{};
  std::vector<Offset> offsets{0};
  std::vector<Column> columns;
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j <= i; ++j) {
      table[static_cast<std::size_t>(i * n + j)] = true;
      columns.push_back(static_cast<Column>(j));
    }
    offsets.push_back(static_cast<Offset>(columns.size()));
  }
  dense.dense = table.data();
  dense.dense_row = n;
  dense.dense_col = 1;
  sparse.sparse_offsets = offsets.data();
  sparse.sparse_columns = columns.data();
  for (const Mask* a : {&causal, &dense, &sparse}) {
    for (const Mask* b : {&causal, &dense, &sparse}) CHECK(masks_agree(*a, *b, 2, n, n));
    CHECK(!masks_agree(*a, Mask{}, 2, n, n));
  }
  table[2 * n + 1] = false;
  CHECK(!masks_agree(dense, causal, 1, n, n));
  CHECK(!masks_agree(sparse, dense, 1, n, n));
}

TEST(masks_that_do_not_fit_are_refused) {
  const auto refused = [](const Mask& mask, const char* part) {
    CHECK_THROWS(InputError, part, check_mask(mask, 2, 3, 4));
  };
  Mask window;
  window.left = -1;
  refused(window, "sides of a window");
  const std::vector<Index> long_keys{4, 5}, negative{0, -1}, good_keys{0, 4};
  Mask lengths;
  lengths.key_lengths = long_keys.data();
  refused(lengths, "key_lengths must lie in 0 ... 4; got 5");
  lengths.key_lengths = negative.data();
  refused(lengths, "got -1");
  lengths.key_lengths = good_keys.data();
  check_mask(lengths, 2, 3, 4);

  const std::vector<Offset> offsets{0, 2, 2, 3}, late{1, 2, 2, 3}, backward{0, 1000000, 2, 3};
  const std::vector<Column> columns{1, 3, 0}, unsorted{3, 1, 0}, twice{1, 1, 0}, beyond{1, 4, 0},
      below{-1, 3, 0};
  Mask sparse;
  sparse.sparse_offsets = offsets.data();
  refused(sparse, "must have columns");
  sparse.sparse_columns = columns.data();
  check_mask(sparse, 2, 3, 4);
  for (const auto& bad : {unsorted, twice, beyond, below}) {
    sparse.sparse_columns = bad.data();
    refused(sparse, "sorted columns in 0 ... 3; row 0");
  }
  sparse.sparse_columns = columns.data();
  sparse.sparse_offsets = late.data();
  refused(sparse, "start at 0");
  sparse.sparse_offsets = backward.data();
  refused(sparse, "decreasing row offsets at row 1");
}
