// Random regular patterns, and what makes a target valid.
#include <algorithm>
#include <cmath>
#include <limits>

#include "check.hpp"
#include "headfit/base/errors.hpp"
#include "headfit/pattern/target.hpp"
#include "sample.hpp"

using namespace headfit;
using namespace headfit::test;

TEST(random_regular_has_k_in_every_row_and_column) {
  for (const Index n : {1, 2, 3, 5, 16, 63, 64, 500}) {
    for (const Index k : {Index(1), Index(2), n / 2, n / 2 + 1, n - 1, n}) {
      if (k < 1 || k > n) continue;
      for (std::uint64_t seed = 0; seed < 5; ++seed) {
        const std::vector<Column> columns = random_regular(n, k, seed);
        CHECK(static_cast<Index>(columns.size()) == n * k);
        std::vector<Index> count(static_cast<std::size_t>(n), 0);
        for (Index i = 0; i < n; ++i) {
          for (Index p = 0; p < k; ++p) {
            const Column c = columns[static_cast<std::size_t>(i * k + p)];
            CHECK(c >= 0 && c < n);
            CHECK(p == 0 || c > columns[static_cast<std::size_t>(i * k + p - 1)]);
            ++count[static_cast<std::size_t>(c)];
          }
        }
        for (const Index c : count) CHECK_THAT(c == k, "n=", n, " k=", k, " seed=", seed);
        CHECK(random_regular(n, k, seed) == columns);
      }
    }
  }
  CHECK(random_regular(100, 4, 1) != random_regular(100, 4, 2));
}

TEST(random_regular_refuses) {
  CHECK_THROWS(InputError, "k: expected", random_regular(5, 6, 0));
  CHECK_THROWS(InputError, "k: expected", random_regular(5, 0, 0));
  CHECK_THROWS(InputError, "n: expected", random_regular(0, 1, 0));
  CHECK_THROWS(InputError, "n: expected", random_regular(Index(1) << 31, 1, 0));
}

TEST(valid_targets) {
  OwnedTarget t;
  t.row({0, 2}, {0.25, 0.75}).row({2}, {1}).row({1, 2}, {0.5, 0.5});
  const TargetSummary s = validate_target(t.view(), 1e-9, {});
  CHECK(s.nonzeros == 5);
  CHECK(s.per_row == 2);
  CHECK(s.per_column == 3);
  CHECK(s.gamma == 3);
}

TEST(threads_find_the_same_in_large_targets) {
  OwnedTarget t;
  const Index n = 20000;
  for (Index i = 0; i < n; ++i) {
    const Column c = static_cast<Column>(i);
    if (i == n - 3) {
      t.row({0, 1, 2, 3, 4, 5, 6}, {0.5, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05});
    } else if (i % 5 == 0) {
      t.row({1, 9}, {0.8, 0.2});
    } else {
      t.row({7, 8, std::max(9, c)}, {0.5, 0.25, 0.25});
    }
  }
  for (const int threads : {1, 2, 3, 0}) {
    const TargetSummary s = validate_target(t.view(), 1e-9, {threads, {}, nullptr});
    CHECK(s.nonzeros == t.view().nonzeros());
    CHECK(s.per_row == 7);
    CHECK(s.per_column == n - n / 5 - 1);
    CHECK_THAT(std::abs(s.gamma - 10) < 1e-12, s.gamma);
  }
  t.weights[static_cast<std::size_t>(t.offsets[15000])] = 0.75;
  t.weights[static_cast<std::size_t>(t.offsets[19000])] = -1;
  for (const int threads : {1, 2, 3, 0}) {
    const Run run{threads, {}, nullptr};
    CHECK_THROWS(TargetError, "row 15000 sums to", validate_target(t.view(), 1e-9, run));
  }
}

namespace {

void rejected(const OwnedTarget& t, const char* part, const Mask& mask = {}) {
  CHECK_THROWS(TargetError, part, validate_target(t.view(mask), 1e-6, {}));
}

}  // namespace

TEST(invalid_targets_name_the_place) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const auto with = [](std::vector<Column> c, std::vector<double> w) {
    return OwnedTarget().row({0}, {1}).row(std::move(c), std::move(w)).row({2}, {1});
  };
  rejected(with({0, 1}, {0.5, 0.4}), "row 1 sums to 0.9");
  rejected(with({0, 1}, {1.5, -0.5}), "-0.5 at row 1, column 1");
  rejected(with({0, 1}, {1, 0}), "got 0 at row 1, column 1");
  rejected(with({0, 1}, {1, nan}), "nan at row 1, column 1");
  rejected(with({0, 1}, {inf, 0.5}), "inf at row 1, column 0");
  rejected(with({1, 0}, {0.5, 0.5}), "row 1 does not, at column 0");
  rejected(with({1, 1}, {0.5, 0.5}), "row 1 does not, at column 1");
  rejected(with({0, 3}, {0.5, 0.5}), "column 3 in row 1");
  rejected(with({-1, 0}, {0.5, 0.5}), "column -1 in row 1");
  rejected(with({}, {}), "row 1 is empty");
  OwnedTarget shifted = with({1}, {1});
  shifted.offsets[0] = 1;
  rejected(shifted, "first row offset");
  OwnedTarget backward = with({1}, {1});
  backward.offsets = {0, 2, 1, 3};
  rejected(backward, "decreasing row offsets at row 1");
}

TEST(masks_of_targets) {
  Mask causal;
  causal.right = 0;
  OwnedTarget lower;
  lower.row({0}, {1}).row({0, 1}, {0.5, 0.5});
  CHECK(validate_target(lower.view(causal), 1e-6, {}).per_column == 2);
  OwnedTarget upper;
  upper.row({1}, {1}).row({0}, {1});
  rejected(upper, "masked position, row 0, column 1", causal);

  // A row may be empty only if the mask allows it no column.
  OwnedTarget hole;
  hole.row({0}, {1}).row({}, {}).row({2}, {1});
  rejected(hole, "row 1 is empty", causal);
  const bool dense[9] = {true, true, true, false, false, false, true, true, true};
  Mask closed;
  closed.dense = dense;
  closed.dense_head = 9, closed.dense_row = 3, closed.dense_col = 1;
  CHECK(validate_target(hole.view(closed), 1e-6, {}).nonzeros == 2);
}

// Looks at 4e8 positions before the row that is wrong.
TEST(checks_of_a_target_can_be_interrupted) {
  constexpr Index n = 20'000;
  const bool nothing = false;
  Mask mask;
  mask.dense = &nothing;
  OwnedTarget t;
  for (Index i = 1; i < n; ++i) t.row({}, {});
  t.row({0}, {1});
  const auto poll = [] { throw Interrupted(); };
  CHECK_THROWS(Interrupted, "interrupted", validate_target(t.view(mask), any_sum, {1, poll}));
}

TEST(tolerances_are_checked_in_one_place) {
  for_bad_tolerances([](const Tolerances& bad) { bad.check(); });
  Tolerances{}.check();
  Tolerances{1e-300, 0, 1e-300}.check();
  CHECK(!Tolerances{}.limits_logits());
  CHECK((Tolerances{0.05, 0.1, 7}.limits_logits()));
  // Messages show enough digits to tell the value from valid ones.
  CHECK_THROWS(InputError, "got -1e-09", (Tolerances{-1e-9, 0.1}.check()));
  CHECK_THROWS(InputError, "got 1.0000000000000002", (Tolerances{1 + 0x1p-52, 0.1}.check()));
}

TEST(entries_are_checked_without_asking_for_sums) {
  // Rows may sum to anything, and may be empty.
  OwnedTarget loose;
  loose.row({0, 2}, {3, 0.5}).row({}, {}).row({1}, {1e-9});
  for (const int threads : {1, 3}) check_entries(loose.view(), {threads, {}});
  const auto refused = [](const OwnedTarget& t, const char* part, const Mask& mask = {}) {
    CHECK_THROWS(TargetError, part, check_entries(t.view(mask), {}));
  };
  const auto with = [](std::vector<Column> c, std::vector<double> w) {
    return OwnedTarget().row({0}, {1}).row(std::move(c), std::move(w)).row({2}, {1});
  };
  refused(with({0, 3}, {0.5, 0.5}), "column 3 in row 1");
  refused(with({-1, 0}, {0.5, 0.5}), "column -1 in row 1");
  refused(with({1, 0}, {0.5, 0.5}), "row 1 does not, at column 0");
  refused(with({0, 1}, {1, 0}), "got 0 at row 1, column 1");
  refused(with({0, 1}, {1, std::nan("")}), "nan at row 1, column 1");
  Mask causal;
  causal.right = 0;
  refused(with({0, 2}, {0.5, 0.5}), "masked position, row 1, column 2", causal);
  OwnedTarget backward = with({1}, {1});
  backward.offsets = {0, 2, 1, 3};
  refused(backward, "decreasing row offsets at row 1");
  CHECK_THROWS(TargetError, "row offsets", check_entries(Target{}, {}));
  OwnedTarget bare = with({1}, {1});
  Target missing = bare.view();
  missing.columns = nullptr;
  CHECK_THROWS(TargetError, "columns and weights", check_entries(missing, {}));
  // The first offending row is named, whatever the number of threads.
  const Index n = 60000;
  OwnedTarget large;
  for (Index i = 0; i < n; ++i) large.row({0, 1, 2, 3}, {0.25, 0.25, 0.25, 0.25});
  large.weights[4 * 31000] = -1;
  large.weights[4 * 59000] = -1;
  for (const int threads : {1, 2, 3}) {
    CHECK_THROWS(TargetError, "-1 at row 31000", check_entries(large.view(), {threads, {}}));
  }
}

TEST(blocks_of_tokens) {
  // Blocks of three tokens, of which the last one has two: each attends to itself, and the last
  // to the first one, with weights up to a factor for each row.
  for (const bool is_causal : {false, true}) {
    OwnedTarget t;
    for (Column i = 0; i < 8; ++i) {
      std::vector<Column> columns;
      std::vector<double> weights;
      for (Column j = 0; j < 8; ++j) {
        const bool attends = i / 3 == j / 3 || (i / 3 == 2 && j / 3 == 0);
        if (!attends || (is_causal && j > i)) continue;
        columns.push_back(j);
        weights.push_back((1 + j / 3) * (1 + 0.1 * i));
      }
      t.row(columns, weights);
    }
    CHECK(block_size(t.view(), is_causal, {}) == 3);
    CHECK(block_size(t.view(), !is_causal, {}) == 0);
    t.weights[2] *= is_causal ? 1.0 : 1.001;
    t.weights[t.weights.size() - 1] *= is_causal ? 1.001 : 1.0;
    CHECK(block_size(t.view(), is_causal, {}) == 0);
  }
  OwnedTarget full, identity;
  for (Column i = 0; i < 4; ++i) {
    full.row({0, 1, 2, 3}, {0.25, 0.25, 0.25, 0.25});
    identity.row({i}, {1});
  }
  CHECK(block_size(full.view(), false, {}) == 0);
  CHECK(block_size(identity.view(), false, {}) == 0);
}
