// Learned heads: the gradient, the lists, and the fit as a whole.
#include <chrono>
#include <cmath>
#include <set>
#include <thread>

#include "check.hpp"
#include "headfit/base/worker_pool.hpp"
#include "headfit/learned/descent.hpp"
#include "headfit/learned/fit_learned.hpp"
#include "problem.hpp"
#include "sample.hpp"

using namespace headfit;
using namespace headfit::test;
using namespace headfit::learned;

namespace {

constexpr double leak = 0.05;
const double distortion = std::expm1(0.1);
const Tolerances tolerances{leak, distortion};

// The state of a fit at its random start, after a scan.
struct State {
  OwnedTarget target;
  Mask mask;
  double max_logit;
  Requirements required;
  PaddedRows q, k;
  ScannedRows scanned;
  CandidateLists lists;
  Philox random{3};

  State(OwnedTarget t, const Mask& m, Index dim, int cap, int threads = 1, double most = infinity)
      : target(std::move(t)),
        mask(m),
        max_logit(most),
        required(target.view(mask), {leak, distortion, most}),
        q(required.n(), dim),
        k(q),
        scanned(0, required.n(), cap),
        lists(required, scanned) {
    random_start(required, random, 0, q, k);
    scanned.forget_lists(required.n());
    scan(0, threads);
  }
  State(const State&) = delete;  // `lists` refers to `required` and `scanned`
  State& operator=(const State&) = delete;

  void scan(Index number, int threads, Index column_step = 1, bool keep = false) {
    const Run run{threads, {}};
    scan_rows(required, q, k, {3, number, column_step, keep}, scanned, run);
    lists.transpose(run);
  }
  // The support of a row and the other columns that it lists.
  std::multiset<Column> listed(Index i) const {
    const auto support = required.support(i);
    std::multiset<Column> all(support.begin(), support.end());
    all.insert(lists.others(i).begin(), lists.others(i).end());
    return all;
  }
  Index hits(Index i) const { return scanned.hits[scanned.at(i)]; }
  double deficit(Index i) const { return static_cast<double>(scanned.deficit[scanned.at(i)]); }

  double logit(Index i, Index j) const {
    double sum = 0;
    for (Index f = 0; f < q.dim(); ++f) {
      sum += static_cast<double>(q.row(i)[f]) * static_cast<double>(k.row(j)[f]);
    }
    return sum;
  }

  // How far a logit is beyond where the bound on |logit| is felt.
  double beyond(double logit) const {
    const double room = std::min(std::log1p(distortion), max_logit / 8);
    return std::max(0.0, std::abs(logit) - (max_logit - room));
  }

  // The loss of a row by its definition, in double and over all columns.
  struct Row {
    double loss = 0, deficit = 0, limit = 0;
  };
  Row row(Index i) const {
    Row r;
    const auto columns = target.view().row_columns(i);
    const auto weights = target.view().row_weights(i);
    if (columns.empty()) return r;
    double centre = 0, high = -infinity, low = infinity, lowest = infinity, smallest = infinity;
    for (std::size_t a = 0; a < columns.size(); ++a) {
      const double s = logit(i, columns[a]), shift = s - std::log(weights[a]);
      centre += shift / static_cast<double>(columns.size());
      high = std::max(high, shift), low = std::min(low, shift);
      lowest = std::min(lowest, s), smallest = std::min(smallest, std::log(weights[a]));
    }
    for (std::size_t a = 0; a < columns.size(); ++a) {
      r.loss += std::pow(logit(i, columns[a]) - std::log(weights[a]) - centre, 2) / 2;
      r.loss += std::pow(beyond(logit(i, columns[a])), 2) / 2;
    }
    const double hinge = centre + smallest + std::log(leak) - std::log1p(distortion);
    r.limit = std::min(hinge - static_cast<double>(Settings::list_slack), lowest + std::log(leak));
    r.deficit = high - low - std::log1p(distortion);
    for (Index j = 0; j < required.n(); ++j) {
      if (std::count(columns.begin(), columns.end(), static_cast<Column>(j)) ||
          !mask.allows(0, i, j, required.n(), required.n())) {
        continue;
      }
      const double excess = logit(i, j) - hinge;
      // Logits from the bound up to a hinge above it follow the support, which is beyond it too.
      const bool follows = logit(i, j) > 0 && logit(i, j) <= r.limit;
      r.loss += std::pow(excess > 0 ? excess : follows ? 0 : beyond(logit(i, j)), 2) / 2;
      r.deficit = std::max(r.deficit, logit(i, j) - lowest - std::log(leak));
    }
    return r;
  }
  double loss() const {
    double sum = 0;
    for (Index i = 0; i < required.n(); ++i) sum += row(i).loss;
    return sum;
  }
};

Mask causal() {
  Mask mask;
  mask.right = 0;
  return mask;
}

// Each row attends to itself and a few before it.
OwnedTarget causal_target(Index n) {
  OwnedTarget t;
  Numbers numbers(5);
  for (Index i = 0; i < n; ++i) {
    std::set<Column> at{static_cast<Column>(i)};
    for (int a = 0; a < 2; ++a) at.insert(static_cast<Column>(numbers.below(i + 1)));
    std::vector<double> w(at.size(), 1.0 / static_cast<double>(at.size()));
    t.row({at.begin(), at.end()}, w);
  }
  return t;
}

LearnedOptions options_for(Index dim, std::uint64_t seed = 1) {
  LearnedOptions options;
  options.dim = dim;
  options.seed = seed;
  return options;
}

// The number of rows outside the tolerances, computed in double.
Index count_outside(const OwnedTarget& t, const Mask& mask, const LearnedResult& r) {
  State state(t, mask, r.q.cols(), 24);
  given_start(heads_of(r.q)[0], heads_of(r.k)[0], state.random, state.q, state.k);
  Index outside = 0;
  for (Index i = 0; i < state.required.n(); ++i) outside += state.row(i).deficit > 0;
  return outside;
}

void check_same(const LearnedResult& a, const LearnedResult& b) {
  CHECK((a.q == b.q));
  CHECK((a.k == b.k));
  CHECK(a.steps == b.steps && a.scans == b.scans && a.failed_rows == b.failed_rows);
}

void check_gradient(const Mask& mask, double max_logit) {
  State state(causal_target(23), mask, 3, 64, 1, max_logit);
  Gradient gradient(state.required, state.lists);
  RowScratch scratch(3, state.required.largest_support());
  Matrix<double> dq(23, 3), dk(23, 3);
  double loss = 0;
  for (Index i = 0; i < 23; ++i) {
    loss += static_cast<double>(gradient.query(i, state.q, state.k, 1, 0, scratch).loss);
    for (Index f = 0; f < 3; ++f) dq(i, f) = static_cast<double>(scratch.sums.gradient(f));
  }
  for (Index j = 0; j < 23; ++j) {
    gradient.key(j, state.q, scratch);
    for (Index f = 0; f < 3; ++f) dk(j, f) = static_cast<double>(scratch.sums.gradient(f));
  }
  CHECK_THAT(std::abs(loss - state.loss()) < 1e-4 * loss, loss, " and ", state.loss());
  const double scale = std::max(dq.cwiseAbs().maxCoeff(), dk.cwiseAbs().maxCoeff());
  CHECK(scale > 1);
  const auto slope = [&](float& x) {
    const float at = x, h = 1.0f / 1024;
    x = at + h;
    const double up = state.loss(), above = static_cast<double>(x);
    x = at - h;
    const double change = (up - state.loss()) / (above - static_cast<double>(x));
    x = at;
    return change;
  };
  for (Index i = 0; i < 23; ++i) {
    for (Index f = 0; f < 3; ++f) {
      const double by_q = slope(state.q.row(i)[f]), by_k = slope(state.k.row(i)[f]);
      CHECK_THAT(std::abs(by_q - dq(i, f)) < 2e-3 * scale, i, " ", f, ": ", by_q, " ", dq(i, f));
      CHECK_THAT(std::abs(by_k - dk(i, f)) < 2e-3 * scale, i, " ", f, ": ", by_k, " ", dk(i, f));
    }
  }
}

}  // namespace

TEST(gradient_is_that_of_the_loss) {
  for (const Mask& mask : {Mask{}, causal()}) {
    for (const double max_logit : {infinity, 6.0}) check_gradient(mask, max_logit);
  }
}

TEST(lists_hold_what_is_near_and_deficits_are_exact) {
  for (const Mask& mask : {Mask{}, causal()}) {
    for (const Index n : {1, 2, 31, 300}) {
      State state(causal_target(n), mask, 4, 400);
      for (Index i = 0; i < n; ++i) {
        const auto want = state.row(i);
        const double got = state.deficit(i);
        CHECK_THAT(std::abs(want.deficit - got) < 1e-3, n, " ", i, ": ", want.deficit, " ", got);
        const std::multiset<Column> listed = state.listed(i);
        CHECK(static_cast<Index>(listed.size()) == state.lists.size(i));
        CHECK(state.lists.share(i) == 1);
        const auto support = state.required.support(i);
        const std::set<Column> inside(support.begin(), support.end());
        for (Index j = 0; j < n; ++j) {
          const bool is_allowed = mask.allows(0, i, j, n, n);
          const bool is_inside = inside.count(static_cast<Column>(j)) > 0;
          const double over = state.logit(i, j) - want.limit;
          if (!is_inside && std::abs(over) < 1e-3) continue;
          CHECK_THAT(listed.count(static_cast<Column>(j)) ==
                         (is_inside || (is_allowed && over > 0)),
                     n, " ", i, " ", j);
        }
      }
    }
  }
}

TEST(some_columns_stand_for_all) {
  for (const Index n : {31, 300}) {
    for (const Index column_step : {2, 7}) {
      State state(regular_target(n, 4, 2), {}, 4, 400);
      state.scan(1, 2, column_step);
      // There is one shift such that every row i has looked at the columns i + shift, modulo
      // `column_step`.
      std::vector<Index> agrees(static_cast<std::size_t>(column_step), 0);
      for (Index i = 0; i < n; ++i) {
        const double limit = state.row(i).limit;
        const auto support = state.required.support(i);
        const auto others = state.lists.others(i);
        const std::set<Column> listed(others.begin(), others.end());
        CHECK(state.hits(i) == static_cast<Index>(listed.size()) * column_step);
        if (!listed.empty()) CHECK(state.lists.share(i) == static_cast<float>(column_step));
        for (Index shift = 0; shift < column_step; ++shift) {
          bool agree = true;
          for (Index j = 0; j < n; ++j) {
            const auto column = static_cast<Column>(j);
            const bool is_listed = listed.count(column) > 0;
            const bool is_seen = (i + shift - j) % column_step == 0;
            const bool is_inside = std::count(support.begin(), support.end(), column) > 0;
            const double over = state.logit(i, j) - limit;
            const bool sure = std::abs(over) > 1e-3;
            agree &= is_listed == (is_seen && !is_inside && over > 0) || (is_seen && !sure);
          }
          agrees[static_cast<std::size_t>(shift)] += agree;
        }
      }
      CHECK(std::count(agrees.begin(), agrees.end(), n) == 1);
    }
  }
}

// When every class of columns has had its turn, lists that are kept hold all columns near the limits
// and no others, wherever queries and keys were before.
TEST(kept_lists_hold_all_classes) {
  for (const Index n : {31, 300}) {
    for (const Index column_step : {2, 7}) {
      State state(regular_target(n, 4, 2), {}, 4, 400);
      for (const std::uint64_t start : {1u, 2u}) {
        random_start(state.required, state.random, start, state.q, state.k);
        for (Index t = 0; t < column_step; ++t) {
          state.scan(t, 1 + static_cast<int>(t % 2), column_step, true);
        }
        for (Index i = 0; i < n; ++i) {
          const State::Row want = state.row(i);
          const auto support = state.required.support(i);
          const std::multiset<Column> listed = state.listed(i);
          for (Index j = 0; j < n; ++j) {
            const auto column = static_cast<Column>(j);
            const bool is_inside = std::count(support.begin(), support.end(), column) > 0;
            const double over = state.logit(i, j) - want.limit;
            if (!is_inside && std::abs(over) < 1e-3) continue;
            CHECK_THAT(listed.count(column) == (is_inside || over > 0), n, " ", i, " ", j);
          }
          CHECK(state.hits(i) == state.lists.listed(i));
          CHECK(state.lists.share(i) == 1);
          CHECK_THAT(std::abs(state.deficit(i) - want.deficit) < 1e-3, n, " ", i);
        }
      }
    }
  }
}

// A list without room for all columns is full, and stands for about as many as there are.
TEST(kept_lists_without_room_are_samples) {
  constexpr Index n = 600, column_step = 8;
  constexpr int cap = 10;
  State all(regular_target(n, 4, 2), {}, 4, 600);
  State few(regular_target(n, 4, 2), {}, 4, cap);
  all.scan(1, 1);
  for (Index t = 0; t < 4 * column_step; ++t) few.scan(t, 1, column_step, true);
  double hits = 0, want = 0;
  for (Index i = 0; i < n; ++i) {
    CHECK(few.lists.listed(i) <= cap);
    if (all.hits(i) >= 8 * cap) CHECK(few.lists.listed(i) == cap);
    hits += static_cast<double>(few.hits(i));
    want += static_cast<double>(all.hits(i));
  }
  CHECK(want > 8.0 * cap * n);  // so that the samples are small
  CHECK(std::abs(hits / want - 1) < 0.1);
}

TEST(a_full_list_is_an_even_sample) {
  for (const Index expected : {0, 24, 100, 1000, 5000}) {
    std::vector<Column> list(24);
    EvenSample sample(expected, 24, 12345);
    for (Index column = 0; column < 1000; column += 10) {
      sample.take(0x3ffu, column, 24, list.data());
    }
    CHECK(sample.seen() == 1000);
    if (expected == 5000) continue;  // the list expects more columns, so it is not full
    CHECK_THAT(sample.taken() >= 11, expected, ": ", sample.taken());
    for (Index t = 1; t < sample.taken(); ++t) {
      const auto at = static_cast<std::size_t>(t);
      const auto step = static_cast<double>(list[at] - list[at - 1]);
      const double even = 1000.0 / static_cast<double>(sample.taken());
      CHECK_THAT(std::abs(step - even) < 6, expected, ": ", step);
    }
  }
}

TEST(transposed_lists_hold_every_entry_once_in_order) {
  for (const int threads : {1, 3}) {
    State state(regular_target(900, 4, 2), {}, 5, 24, threads);
    std::size_t entries = 0;
    for (Index j = 0; j < 900; ++j) {
      Index before = -1;
      for (const CandidateLists::Source& source : state.lists.sources(j)) {
        CHECK(source.row > before);
        CHECK(source.slot >= state.lists.first(source.row));
        const auto place = static_cast<Index>(source.slot - state.lists.first(source.row));
        CHECK(place < state.lists.size(source.row));
        const auto support = state.required.support(source.row);
        const auto inside = static_cast<Index>(support.size());
        const Column column = place < inside ? support[static_cast<std::size_t>(place)]
                                             : state.scanned.list(source.row)[place - inside];
        CHECK(column == static_cast<Column>(j));
        before = source.row;
        ++entries;
      }
    }
    Index total = 0;
    for (Index i = 0; i < 900; ++i) total += state.lists.size(i);
    CHECK(static_cast<Index>(entries) == total);
  }
}

TEST(regular_targets_are_met) {
  for (const std::uint64_t seed : {1, 2}) {
    const OwnedTarget t = regular_target(256, 4, seed);
    const LearnedResult r = fit_learned(t.view(), tolerances, options_for(7, seed), {1, {}});
    CHECK(r.status == LearnedStatus::Met);
    CHECK(r.failed_rows.empty() && r.worst_deficit <= 0);
    CHECK(count_outside(t, {}, r) == 0);
  }
}

TEST(masked_targets_are_met) {
  const OwnedTarget t = causal_target(150);
  const LearnedResult r = fit_learned(t.view(causal()), tolerances, options_for(8), {1, {}});
  CHECK(r.status == LearnedStatus::Met);
  CHECK(count_outside(t, causal(), r) == 0);
}

TEST(threads_change_no_bit) {
  const OwnedTarget t = regular_target(700, 3, 4);
  LearnedOptions options = options_for(5);
  options.max_steps = 150;
  const LearnedResult one = fit_learned(t.view(), tolerances, options, {1, {}});
  for (const int threads : {2, 3}) {
    check_same(one, fit_learned(t.view(), tolerances, options, {threads, {}}));
  }
  options.seed = 9;
  CHECK((fit_learned(t.view(), tolerances, options, {1, {}}).q != one.q));
  // With this many tokens, the first scans look at a part of the columns only.
  const OwnedTarget large = regular_target(2500, 2, 4);
  options.max_steps = 6;
  check_same(fit_learned(large.view(), tolerances, options, {1, {}}),
             fit_learned(large.view(), tolerances, options, {3, {}}));
  options.many_rows_from = 2000;
  check_same(fit_learned(large.view(), tolerances, options, {1, {}}),
             fit_learned(large.view(), tolerances, options, {3, {}}));
}

// Coordinates are stored as floats, which may be a little less than the power of two, times the unit,
// that they stand for. The grid beyond it is the coarser one all the same.
TEST(the_grid_is_as_coarse_as_its_format_beyond_powers_of_two) {
  for (const NumberFormat& format : {NumberFormat::bfloat16(), NumberFormat::float8_e5m2()}) {
    for (int dim = 1; dim <= 64; ++dim) {
      const Grid grid{format, 1 / std::sqrt(static_cast<double>(dim))};
      for (const double number : {0.25, 1.0, 8.0, 1.5}) {
        const auto stored = static_cast<double>(static_cast<float>(grid.unit * number));
        CHECK(grid.spacing(stored) == grid.unit * format.spacing(number));
        const double next = grid.unit * (number + format.spacing(number));
        CHECK(std::abs(grid.rounded(stored + grid.spacing(stored)) - next) < 1e-12);
      }
    }
  }
}

TEST(rounding_to_a_grid_can_be_interrupted) {
  constexpr Index dim = 256;
  State s(regular_target(200, 4, 1), {}, dim, 20);
  const Grid grid{NumberFormat::float8_e5m2(), 1};
  NearestPlane nearest_plane(dim);
  GridSearch search(24);
  RowSums sums(dim);
  sums.clear();
  for (Index j = 0; j < 200; ++j) sums.add(s.k.row(j), 1, 1);
  sums.finish();
  const std::function<void()> poll = [] { throw Interrupted(); };
  const auto check_interrupted = [&](const auto& work) {
    const Interruptible here(poll);
    CHECK_THROWS(Interrupted, "interrupted", for (int turn = 0; turn < 200; ++turn) work());
  };
  check_interrupted([&] { nearest_plane.round(sums, grid, s.k.row(0)); });
  // With so much rounding no row meets its tolerances.
  check_interrupted([&] { search.improve({s.required, s.lists, s.k, 0, 1}, grid, s.q.row(0)); });
}

// Steps whose averaged curvatures are stored as bfloat16 differ by rounding only.
TEST(short_curvatures_make_the_same_steps_up_to_rounding) {
  constexpr Index n = 2 * lanes, dim = 5, ages = 30;
  const Settings usual = Settings::for_rows(n, 4, distortion);
  Settings many = usual;
  many.short_curvature = true;
  BlockSteps exact(n, dim, usual), rounded(n, dim, many);
  PaddedRows x(8, dim);
  double worst = 0;
  for (Index age = 1; age <= ages; ++age) {
    for (Index block = 0; block < 2; ++block) {
      LaneScratch a(dim), b(dim);
      for (Index lane = 0; lane < lanes; ++lane) {
        RowSums sums(dim);
        sums.clear();
        for (Index m = 0; m < x.rows(); ++m) {
          Eigen::Map<Eigen::VectorXf>(x.row(m), dim).setRandom();
          sums.add(x.row(m), 1 + x.row(m)[0], 1.0f);
        }
        sums.finish();
        a.take(dim, lane, sums);
        b.take(dim, lane, sums);
      }
      exact.solve(block, 0.1f, age, a);
      rounded.solve(block, 0.1f, age, b);
      for (std::size_t f = 0; f < a.step.size(); ++f) {
        worst = std::max(worst, static_cast<double>(std::abs(a.step[f] - b.step[f])));
      }
    }
  }
  CHECK(worst > 0 && worst < 0.005);  // steps have the length 0.1
}

// With ample room a fit that keeps its lists ends, and its verdict is that of an exact scan.
TEST(fits_that_keep_lists_meet_the_tolerances) {
  const OwnedTarget t = regular_target(3000, 3, 2);
  LearnedOptions options = options_for(14);
  options.many_rows_from = 2000;
  const LearnedResult r = fit_learned(t.view(), tolerances, options, {2, {}});
  CHECK(r.status == LearnedStatus::Met);
  CHECK(count_outside(t, {}, r) == 0);
}

// Where lists are kept, a quench with ample room is never shorter than without, nor longer than
// one with little room.
TEST(rows_with_many_nonzeros_are_quenched_for_longer_where_lists_are_kept) {
  Index last = 0;
  for (const double k : {1.0, 4.0, 8.0, 12.0, 16.0, 64.0}) {
    Settings settings = Settings::for_rows(100'000, k, distortion);
    const Index without = settings.ample_quench;
    settings.for_many_rows(k, false);
    CHECK(settings.short_curvature && !settings.keeps_lists && settings.ample_quench == without);
    settings.for_many_rows(k, true);
    CHECK(settings.keeps_lists && settings.ample_quench >= std::max(last, without));
    CHECK(settings.ample_quench <= Settings::quench_steps);
    CHECK(k > 8 || settings.ample_quench == without);
    last = settings.ample_quench;
  }
  CHECK(last == Settings::quench_steps);
}

// A fit whose scans are made elsewhere, in parts that differ from scan to scan, is the same.
TEST(shared_scans_change_no_bit) {
  const auto check_shared = [](const Target& target, const Tolerances& asked,
                               LearnedOptions options) {
    const LearnedResult alone = fit_learned(target, asked, options, {1, {}});
    Index scans = 0, largest_step = 0;
    options.scanner = [&](const ScanRequest& request) {
      ScannedRows all(0, target.n, request.list_cap);
      Index first = 0;
      for (const Index end : {1 + scans % 7, target.n / 3, target.n / 3, target.n}) {
        const ScannedRows part = scan_rows(target, request, first, end, {1, {}});
        std::copy(part.columns.begin(), part.columns.end(),
                  all.columns.begin() + first * request.list_cap);
        std::copy(part.listed.begin(), part.listed.end(), all.listed.begin() + first);
        std::copy(part.hits.begin(), part.hits.end(), all.hits.begin() + first);
        std::copy(part.deficit.begin(), part.deficit.end(), all.deficit.begin() + first);
        std::copy(part.rounding.begin(), part.rounding.end(), all.rounding.begin() + first);
        first = end;
      }
      ++scans;
      largest_step = std::max(largest_step, request.sampling.column_step);
      return all;
    };
    const LearnedResult shared = fit_learned(target, asked, options, {1, {}});
    check_same(alone, shared);
    CHECK(scans >= shared.scans && shared.scans > 0);
    return largest_step;
  };
  LearnedOptions options = options_for(5);
  options.max_steps = 60;
  const OwnedTarget t = regular_target(300, 3, 4), past = causal_target(150);
  check_shared(t.view(), tolerances, options);
  check_shared(t.view(), {leak, distortion, 12}, options);
  check_shared(past.view(causal()), tolerances, options);
  options.storage = Storage{NumberFormat::bfloat16(), 1};
  check_shared(t.view(), tolerances, options);
  options.storage.reset();
  const OwnedTarget large = regular_target(2500, 2, 4);
  options.max_steps = 6;
  CHECK(check_shared(large.view(), tolerances, options) > 1);
  options.many_rows_from = 2000;
  CHECK(check_shared(large.view(), tolerances, options) > 1);

  options.scanner = [](const ScanRequest&) { return ScannedRows(0, 3, 2); };
  CHECK_THROWS(InputError, "a scan must find something about each of the 300 rows",
               fit_learned(t.view(), tolerances, options, {1, {}}));
  options.scanner = [](const ScanRequest& request) {
    ScannedRows rows(0, request.q.rows, request.list_cap);
    std::fill(rows.listed.begin(), rows.listed.end(), 1);
    std::fill(rows.columns.begin(), rows.columns.end(), 300);
    return rows;
  };
  CHECK_THROWS(InputError, "a scan must list columns of A; got 300",
               fit_learned(t.view(), tolerances, options, {1, {}}));
}

TEST(requests_of_scans_are_checked) {
  const OwnedTarget t = regular_target(40, 3, 4);
  const PaddedRows x(40, 5);
  const std::vector<Index> hits(40), listed(40, 1), many(40, 5), few(39);
  const std::vector<Column> columns(160), outside(160, 40);
  const ScanRequest usual{tolerances, 0, x.heads(), x.heads(), {}, 4, hits};
  const auto scanned = [&](auto change, Index end = 9) {
    ScanRequest request = usual;
    change(request);
    return scan_rows(t.view(), request, 3, end, {1, {}});
  };
  const auto keep = [&](std::span<const Column> places, std::span<const Index> counts) {
    return [=](ScanRequest& r) {
      r.columns = places, r.listed = counts;
      r.sampling.column_step = 2, r.sampling.keep = true;
    };
  };
  CHECK(scanned(keep(columns, listed)).hits.size() == 6);
  CHECK_THROWS(InputError, "must have list_cap places for each of the 40 rows",
               scanned(keep(columns, few)));
  CHECK_THROWS(InputError, "must have list_cap places for each of the 40 rows",
               scanned(keep({}, listed)));
  CHECK_THROWS(InputError, "listed must be in 0 ... 4; got 5 in row 3",
               scanned(keep(columns, many)));
  CHECK_THROWS(InputError, "a scan must keep columns of A; got 40 in row 3",
               scanned(keep(outside, listed)));
  CHECK_THROWS(InputError, "rows must lie in 0 ... 40; got 3 ... 41",
               scanned([](ScanRequest&) {}, 41));
  CHECK_THROWS(InputError, "column_step must be in 1 ... 40; got 41",
               scanned([](ScanRequest& r) { r.sampling.column_step = 41; }));
}

TEST(edges) {
  // These are cases of one and two tokens, full supports, and rows that the mask leaves empty.
  for (const Index n : {1, 2, 3, 17}) {
    for (const Index dim : {1, 2, 5}) {
      OwnedTarget all;
      std::vector<Column> columns;
      for (Index j = 0; j < n; ++j) columns.push_back(static_cast<Column>(j));
      const std::vector<double> weights(columns.size(), 1.0 / static_cast<double>(n));
      for (Index i = 0; i < n; ++i) all.row(columns, weights);
      LearnedOptions options = options_for(dim);
      options.max_steps = 2000;
      const LearnedResult r = fit_learned(all.view(), tolerances, options, {2, {}});
      CHECK_THAT(r.status == LearnedStatus::Met, n, " ", dim);
      CHECK(r.q.rows() == n && r.q.cols() == dim && r.k.rows() == n);
    }
  }
  OwnedTarget gaps;
  gaps.row({}, {}).row({0}, {1}).row({}, {}).row({1, 2}, {0.5, 0.5});
  const std::vector<Offset> offsets{0, 0, 3, 3, 7};
  const std::vector<Column> columns{0, 1, 2, 0, 1, 2, 3};
  Mask mask;
  mask.sparse_offsets = offsets.data();
  mask.sparse_columns = columns.data();
  const LearnedResult r = fit_learned(gaps.view(mask), tolerances, options_for(3), {1, {}});
  CHECK(r.status == LearnedStatus::Met);
  CHECK(r.q.allFinite() && r.k.allFinite());
  const OwnedTarget nothing;
  const LearnedResult none = fit_learned(nothing.view(), tolerances, options_for(3), {1, {}});
  CHECK(none.status == LearnedStatus::Met);
}

TEST(starts) {
  const OwnedTarget t = regular_target(200, 3, 8);
  LearnedOptions options = options_for(6);
  const LearnedResult met = fit_learned(t.view(), tolerances, options, {1, {}});
  CHECK(met.status == LearnedStatus::Met);
  options.start = GivenHead{heads_of(met.q), heads_of(met.k)};
  const LearnedResult again = fit_learned(t.view(), tolerances, options, {1, {}});
  CHECK(again.steps == 0 && again.scans == 1 && again.q == met.q && again.k == met.k);

  options.dim = 7;  // one more than the start has
  const LearnedResult wider = fit_learned(t.view(), tolerances, options, {1, {}});
  CHECK(wider.status == LearnedStatus::Met && wider.starts == 1 && wider.quenches == 1);
  CHECK_THAT(wider.steps <= options.warm_steps, wider.steps);
  options.warm_steps = 0;
  const LearnedResult cold = fit_learned(t.view(), tolerances, options, {1, {}});
  CHECK(cold.starts >= 1);
  options.dim = 5;
  CHECK_THROWS(InputError, "a start must have 200 rows and 1 to 5 columns",
               fit_learned(t.view(), tolerances, options, {1, {}}));
}

TEST(stages_go_on_from_the_head_of_the_last_one) {
  const OwnedTarget t = regular_target(200, 4, 3);
  const Tolerances loose{0.5, 2.0};
  LearnedOptions options = options_for(7);
  options.max_steps = 3000;
  options.looser = {loose};
  options.stage_steps = 900;
  Index scans = 0;
  options.progress = [&](const LearnedProgress&) { return ++scans > 0; };
  const LearnedResult both = fit_learned(t.view(), tolerances, options, {1, {}});
  CHECK(scans > 0);
  options.looser.clear();
  options.max_steps = 900;
  const LearnedResult first = fit_learned(t.view(), loose, options, {1, {}});
  options.max_steps = 3000 - first.steps;
  options.start = GivenHead{heads_of(first.q), heads_of(first.k)};
  const LearnedResult second = fit_learned(t.view(), tolerances, options, {1, {}});
  CHECK((both.q == second.q) && (both.k == second.k));
  CHECK(both.steps == first.steps + second.steps && both.starts == first.starts + second.starts);

  // The last stage of a fit that is stopped takes no steps.
  options = options_for(7);
  options.looser = {loose, {0.1, 0.2}};
  options.progress = [](const LearnedProgress&) { return false; };
  const LearnedResult none = fit_learned(t.view(), tolerances, options, {1, {}});
  CHECK(none.status == LearnedStatus::Stopped && none.steps == 0 && none.starts == 1);
  CHECK(static_cast<Index>(none.failed_rows.size()) == count_outside(t, {}, none));
}

TEST(rows_that_are_left_get_exact_queries) {
  const OwnedTarget t = regular_target(200, 3, 8);
  const Tolerances tighter{leak / 2, distortion / 2};
  const LearnedResult met = fit_learned(t.view(), tighter, options_for(8), {1, {}});
  CHECK(met.status == LearnedStatus::Met && met.polished == 0);
  Matrix<float> q = met.q;
  const std::vector<Index> left = {3, 50, 199};
  for (const Index i : left) q.row(i) *= -1;
  CHECK(rows_outside(t.view(), tighter, heads_of(q), heads_of(met.k), {1, {}}) == left);
  LearnedOptions options = options_for(8);
  options.start = GivenHead{heads_of(q), heads_of(met.k)};
  options.max_steps = 0;
  CHECK(fit_learned(t.view(), tighter, options, {1, {}}).failed_rows == left);
  options.polished_share = 0.1;
  const LearnedResult r = fit_learned(t.view(), tighter, options, {1, {}});
  CHECK(r.polished == 3 && r.failed_rows.empty());
  CHECK(count_outside(t, {}, r) == 0);
  CHECK((r.q.row(4) == met.q.row(4)) && (r.q.row(3) != met.q.row(3)));
}

TEST(queries_suit_rounded_keys) {
  const OwnedTarget t = regular_target(200, 3, 8);
  const LearnedResult met = fit_learned(t.view(), tolerances, options_for(14), {1, {}});
  const Storage storage{NumberFormat::bfloat16(), 0.3};
  const Matrix<float> k = met.k.unaryExpr(
      [&](float x) { return static_cast<float>(storage.format.rounded(static_cast<double>(x))); });
  const Tolerances half{leak / 2, distortion / 2};
  NarrowOptions options{tolerances, tolerances, {tolerances}, {half}, storage};
  const GivenHead head{heads_of(met.q), heads_of(k)};
  const NarrowQueries found = narrow_queries(t.view(), options, head, {1, {}});
  CHECK(found.fit && found.failed_rows.empty());
  CHECK(rows_outside(t.view(), tolerances, heads_of(found.q), heads_of(k), {1, {}}).empty());
  CHECK((found.q == narrow_queries(t.view(), options, head, {3, {}}).q));
  options.max_norm = 1e-3;  // no query is as short
  options.less = {{1e-4, 1e-4}};
  const NarrowQueries none = narrow_queries(t.view(), options, head, {1, {}});
  CHECK(!none.fit && !none.failed_rows.empty());
  options.less.clear();
  CHECK_THROWS(InputError, "tolerances of exact ones",
               narrow_queries(t.view(), options, head, {1, {}}));
}

TEST(norms_are_bounded) {
  const OwnedTarget t = regular_target(200, 3, 8);
  LearnedOptions options = options_for(9);
  options.max_norm = 120;
  const LearnedResult r = fit_learned(t.view(), tolerances, options, {1, {}});
  const float product = r.q.rowwise().norm().maxCoeff() * r.k.rowwise().norm().maxCoeff();
  CHECK_THAT(product <= 120, product);
  CHECK(r.status == LearnedStatus::Met);
}

TEST(norms_of_rounded_heads_are_bounded) {
  const OwnedTarget t = regular_target(200, 3, 8);
  for (const NumberFormat& format :
       {NumberFormat::bfloat16(), NumberFormat::float8_e4m3fn(), NumberFormat::float8_e5m2()}) {
    LearnedOptions options = options_for(14);
    options.max_norm = 40;
    options.storage = Storage{format, 0.3, 40};
    const LearnedResult r = fit_learned(t.view(), tolerances, options, {1, {}});
    CHECK(r.status == LearnedStatus::Met && r.roundings > 0);
    const double longest_key = r.k.cast<double>().rowwise().norm().maxCoeff();
    double product = r.q.cast<double>().rowwise().norm().maxCoeff() * longest_key;
    CHECK_THAT(product <= 40, product);
    // Queries that are too long for the keys are made shorter.
    options.storage->max_norm = product / 2;
    const GivenHead head{heads_of(r.q), heads_of(r.k)};
    const Matrix<float> q = round_queries(t.view(), tolerances, head, *options.storage, {1, {}});
    product = q.cast<double>().rowwise().norm().maxCoeff() * longest_key;
    CHECK_THAT(product <= options.storage->max_norm, product);
    options.storage->max_norm = -1;
    CHECK_THROWS(InputError, "max_norm must not",
                 fit_learned(t.view(), tolerances, options, {1, {}}));
  }
}

// Roundings are made with some of the tolerances in reserve; what a fit says of its rows knows none.
TEST(rows_left_are_outside_the_tolerances_as_asked) {
  const OwnedTarget t = regular_target(200, 3, 1);
  LearnedOptions options;
  options.dim = 10;
  options.storage = Storage{NumberFormat::bfloat16(), 1};
  Index without_reserve = 0;
  for (options.max_steps = 200; options.max_steps <= 320; options.max_steps += 10) {
    const LearnedResult found = fit_learned(t.view(), tolerances, options, {1, {}});
    if (found.status == LearnedStatus::Met) continue;
    const auto outside =
        rows_outside(t.view(), tolerances, heads_of(found.q), heads_of(found.k), {1, {}});
    CHECK(found.failed_rows == outside);
    without_reserve += !outside.empty();
  }
  CHECK(without_reserve > 0);
}

TEST(limits_stop_the_fit) {
  const OwnedTarget t = regular_target(300, 4, 1);
  LearnedOptions options = options_for(2);  // a head size that is too small
  options.max_steps = 40;
  LearnedResult r = fit_learned(t.view(), tolerances, options, {1, {}});
  CHECK(r.status == LearnedStatus::StepLimit && r.steps == 40);
  CHECK(!r.failed_rows.empty() && r.worst_deficit > 0);
  CHECK(static_cast<Index>(r.failed_rows.size()) == count_outside(t, {}, r));

  options = options_for(2);
  options.time_limit = 0.05;
  const auto begin = std::chrono::steady_clock::now();
  r = fit_learned(t.view(), tolerances, options, {1, {}});
  CHECK(r.status == LearnedStatus::TimeLimit);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));

  options = options_for(2);
  Index calls = 0;
  options.progress = [&](const LearnedProgress& now) {
    CHECK(now.rows_left > 0 && now.worst_deficit > 0);
    return ++calls < 5;
  };
  r = fit_learned(t.view(), tolerances, options, {2, {}});
  CHECK(r.status == LearnedStatus::Stopped && calls == 5 && r.scans == 5);
}

TEST(a_poll_interrupts) {
  const OwnedTarget t = regular_target(300, 4, 1);
  for (const int threads : {1, 2}) {
    Run run{threads, [] { throw Interrupted(); }};
    CHECK_THROWS(Interrupted, "interrupted",
                 fit_learned(t.view(), tolerances, options_for(2), run));
  }
}

TEST(pool_runs_every_task_once) {
  WorkerPool pool(2);
  Run run{3, {}};
  run.helpers = &pool;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::atomic<int>> seen(static_cast<std::size_t>(round % 40));
    parallel_for(static_cast<Index>(seen.size()), run,
                 [&](Index task) { ++seen[static_cast<std::size_t>(task)]; });
    for (const auto& count : seen) CHECK(count == 1);
  }
  // Regions may be nested, and the error of the earliest task is thrown.
  std::atomic<int> inner{0};
  parallel_for(5, run, [&](Index) { parallel_for(4, run, [&](Index) { ++inner; }); });
  CHECK(inner == 20);
  for (int round = 0; round < 50; ++round) {
    CHECK_THROWS(InputError, "task 3", parallel_for(100, run, [](Index task) {
      if (task >= 3) throw InputError("task " + std::to_string(task));
    }));
  }
}

TEST(impossible_options) {
  const OwnedTarget t = regular_target(20, 2, 1);
  const auto fit = [&](const auto& change) {
    LearnedOptions options = options_for(2);
    change(options);
    fit_learned(t.view(), tolerances, options, {1, {}});
  };
  using Options = LearnedOptions;
  const double nan = std::nan("");
  const Storage no_unit{NumberFormat::bfloat16(), 0};
  CHECK_THROWS(InputError, "dim must be positive", fit([](Options& o) { o.dim = 0; }));
  CHECK_THROWS(InputError, "first_hold must be", fit([](Options& o) { o.first_hold = 0; }));
  CHECK_THROWS(InputError, "max_steps must be", fit([](Options& o) { o.max_steps = -1; }));
  CHECK_THROWS(InputError, "most_reheats must", fit([](Options& o) { o.most_reheats = -1; }));
  CHECK_THROWS(InputError, "time_limit must be", fit([&](Options& o) { o.time_limit = nan; }));
  CHECK_THROWS(InputError, "max_norm must not", fit([](Options& o) { o.max_norm = -1; }));
  CHECK_THROWS(InputError, "query_unit must be", fit([&](Options& o) { o.storage = no_unit; }));
}

TEST(every_entry_checks_its_tolerances_and_its_target) {
  const OwnedTarget t = regular_target(20, 2, 1), outside = target_out_of_range(20);
  const Matrix<float> x = Matrix<float>::Constant(20, 3, 0.5f), few = x.topRows(19);
  const GivenHead head{heads_of(x), heads_of(x)};
  const Storage storage{NumberFormat::bfloat16()};
  const auto each = [&](const OwnedTarget& target, const Tolerances& asked, const auto& check) {
    const Run run{1, {}};
    check([&] { fit_learned(target.view(), asked, options_for(2), run); });
    check([&] { round_queries(target.view(), asked, head, storage, run); });
  };
  for (int entry = 0; entry < 2; ++entry) {
    for_bad_tolerances([&](const Tolerances& bad) {
      int at = 0;
      each(t, bad, [&](const auto& call) {
        if (at++ == entry) call();
      });
    });
  }
  each(t, {0.05, 0}, [](const auto& call) {
    CHECK_THROWS(InputError, "distortion must be positive to learn", call());
  });
  each(outside, {},
       [](const auto& call) { CHECK_THROWS(TargetError, "column 20 in row 19", call()); });
  for (const GivenHead& bad :
       {GivenHead{heads_of(few), heads_of(x)}, GivenHead{heads_of(x), heads_of(few)}}) {
    CHECK_THROWS(InputError, "20 rows", round_queries(t.view(), tolerances, bad, storage, {1, {}}));
  }
}
