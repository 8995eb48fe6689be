#include "headfit/pattern/target.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "headfit/base/errors.hpp"
#include "headfit/logits/check_mask.hpp"

namespace headfit {
namespace {

std::string as_text(double number) { return as_typed(number); }

template <class Part>
const Part& as_text(const Part& part) {
  return part;
}

template <class... Parts>
[[noreturn]] void reject(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << as_text(parts));
  throw TargetError(text.str());
}

bool mask_leaves_nothing(const Target& t, Index row) {
  const ColumnRange open = t.mask.range(0, row, t.n, t.n);
  for (Index j = open.begin; j < open.end; ++j) {
    if (t.mask.allows(0, row, j, t.n, t.n)) return false;
  }
  return true;
}

// Checks the row offsets and the mask.
void check_structure(const Target& t) {
  if (t.n < 0 || !t.offsets) reject("A must have row offsets, one more than rows");
  if (t.offsets[0] != 0) reject("A has a first row offset of ", t.offsets[0], "; expected 0");
  for (Index i = 0; i < t.n; ++i) {
    if (t.offsets[i + 1] < t.offsets[i]) reject("A has decreasing row offsets at row ", i);
  }
  if (t.nonzeros() > 0 && !(t.columns && t.weights)) reject("A must have columns and weights");
  check_mask(t.mask, 1, t.n, t.n);
}

// Whether the columns and weights of the row are valid, apart from the mask. The loop has no
// branches, so that it runs as fast as memory is read.
bool is_sound(const Target& t, Index i) {
  const auto columns = t.row_columns(i);
  const auto weights = t.row_weights(i);
  bool sound = true;
  Index before = -1;
  for (std::size_t p = 0; p < columns.size(); ++p) {
    sound &= columns[p] > before;
    sound &= weights[p] > 0;
    sound &= weights[p] <= std::numeric_limits<double>::max();
    before = columns[p];
  }
  return sound && before < t.n;
}

void check_row(const Target& t, Index i) {
  if (t.mask.is_open() && is_sound(t, i)) return;
  const auto columns = t.row_columns(i);
  const auto weights = t.row_weights(i);
  for (std::size_t p = 0; p < columns.size(); ++p) {
    if (columns[p] < 0 || columns[p] >= t.n) {
      reject("A has column ", columns[p], " in row ", i, "; expected 0 ... ", t.n - 1);
    }
    if (p > 0 && columns[p] <= columns[p - 1]) {
      reject("A must have sorted columns without duplicates; row ", i, " does not, at column ",
             columns[p]);
    }
    if (!(weights[p] > 0 && std::isfinite(weights[p]))) {
      reject("A must have nonnegative finite entries; got ", weights[p], " at row ", i, ", column ",
             columns[p]);
    }
    if (!t.mask.allows(0, i, columns[p], t.n, t.n)) {
      reject("A has a nonzero on a masked position, row ", i, ", column ", columns[p]);
    }
  }
}

// The same for several rows, in passes over all of their nonzeros that compile to vector code.
// Columns may fail to ascend only where a row starts. So the places where they do not ascend are
// counted, and those at starts of rows are subtracted.
bool are_sound(const Target& t, Index first, Index end) {
  const Offset begin = t.offsets[first], stop = t.offsets[end];
  const auto n = static_cast<std::uint32_t>(t.n);
  constexpr double largest = std::numeric_limits<double>::max();
  std::int64_t bad_weights = 0;
  std::int32_t bad_columns = 0, descents = 0;
  for (Offset p = begin; p < stop; ++p) {
    bad_weights |= !((t.weights[p] > 0) & (t.weights[p] <= largest));
  }
  for (Offset p = begin; p < stop; ++p) {
    bad_columns |= static_cast<std::uint32_t>(t.columns[p]) >= n;
  }
  for (Offset p = begin + 1; p < stop; ++p) descents += t.columns[p] <= t.columns[p - 1];
  for (Index i = first; i < end; ++i) {
    const Offset p = t.offsets[i];
    if (p > begin && p < t.offsets[i + 1]) descents -= t.columns[p] <= t.columns[p - 1];
  }
  return bad_weights == 0 && bad_columns == 0 && descents == 0;
}

// Limits the number of threads, so that each has enough work to be worth starting.
Run limited_to(Offset nonzeros, const Run& run) {
  constexpr Offset worth_a_thread = 1 << 17;
  Run limited = run;
  limited.threads = run.thread_count(nonzeros / worth_a_thread);
  return limited;
}

// What a thread finds in its rows.
struct Found {
  TargetSummary summary;
  std::vector<Column> column_counts;
};

Found check_rows(const Target& t, double sum_tolerance, Index first, Index end) {
  Found found{{}, std::vector<Column>(static_cast<std::size_t>(t.n), 0)};
  TargetSummary& summary = found.summary;
  Checkpoints pace;
  for (Index i = first; i < end; ++i) {
    check_row(t, i);
    const auto weights = t.row_weights(i);
    pace.after(weights.empty() ? t.n : static_cast<Index>(weights.size()));
    if (weights.empty()) {
      if (!mask_leaves_nothing(t, i)) {
        reject("A must have a nonzero in every row that the mask leaves open; row ", i,
               " is empty");
      }
      continue;
    }
    double sum = 0, low = weights[0], high = weights[0];
    for (const double w : weights) {
      sum += w;
      low = std::min(low, w);
      high = std::max(high, w);
    }
    if (!(std::abs(sum - 1) <= sum_tolerance)) {
      reject("A must have rows that sum to 1 within ", sum_tolerance, "; row ", i, " sums to ", sum,
             " (normalize=True scales the rows)");
    }
    summary.gamma = std::max(summary.gamma, high / low);
    summary.per_row = std::max(summary.per_row, static_cast<Index>(weights.size()));
    for (const Column j : t.row_columns(i)) ++found.column_counts[static_cast<std::size_t>(j)];
  }
  return found;
}

}  // namespace

TargetSummary validate_target(const Target& t, double sum_tolerance, const Run& run) {
  check_structure(t);
  // Every thread counts the columns for itself. A thread has at least n nonzeros, so that the
  // counts take no more memory than the nonzeros do.
  constexpr Index few = 1 << 14;
  const Index parts = run.thread_count(t.nonzeros() / std::max(t.n, few));
  std::vector<Found> found(static_cast<std::size_t>(parts));
  parallel_for(parts, run, [&](Index part) {
    found[static_cast<std::size_t>(part)] =
        check_rows(t, sum_tolerance, t.n * part / parts, t.n * (part + 1) / parts);
  });

  TargetSummary all = found[0].summary;
  all.nonzeros = t.nonzeros();
  std::vector<Column>& counts = found[0].column_counts;
  for (std::size_t part = 1; part < found.size(); ++part) {
    all.gamma = std::max(all.gamma, found[part].summary.gamma);
    all.per_row = std::max(all.per_row, found[part].summary.per_row);
    std::transform(counts.begin(), counts.end(), found[part].column_counts.begin(), counts.begin(),
                   std::plus<>());
  }
  if (t.n > 0) all.per_column = *std::max_element(counts.begin(), counts.end());
  return all;
}

void check_entries(const Target& t, const Run& run) {
  check_structure(t);
  constexpr Index few_rows = 1 << 11;  // their nonzeros stay in cache from pass to pass
  const auto make_worker = [&t] {
    return [&t, pace = Checkpoints()](Index first, Index end) mutable {
      if (t.mask.is_open() && are_sound(t, first, end)) return;
      for (Index i = first; i < end; ++i) {
        check_row(t, i);
        pace.after(t.offsets[i + 1] - t.offsets[i]);
      }
    };
  };
  parallel_rows(t.n, limited_to(t.nonzeros(), run), make_worker, few_rows);
}

SomeRows::SomeRows(const Target& target, std::span<const Index> rows)
    : n_(target.n), mask_(target.mask), offsets_(static_cast<std::size_t>(target.n + 1), 0) {
  for (const Index i : rows) {
    if (i < 0 || i >= n_) {
      throw InputError("rows must lie in 0 ... " + std::to_string(n_ - 1) + "; got " +
                       std::to_string(i));
    }
    offsets_[static_cast<std::size_t>(i + 1)] = target.offsets[i + 1] - target.offsets[i];
  }
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  for (Index i = 0; i < n_; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (offsets_[at + 1] == offsets_[at]) continue;
    const auto columns = target.row_columns(i);
    const auto weights = target.row_weights(i);
    columns_.insert(columns_.end(), columns.begin(), columns.end());
    weights_.insert(weights_.end(), weights.begin(), weights.end());
  }
}

}  // namespace headfit
