#include "headfit/pattern/target.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "headfit/base/errors.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {
namespace {

bool mask_leaves_nothing(const Target& t, Index row) {
  const ColumnRange open = t.mask.range(0, row, t.n, t.n);
  for (Index j = open.begin; j < open.end; ++j) {
    if (t.mask.allows(0, row, j, t.n, t.n)) return false;
  }
  return true;
}

// Checks the row offsets and the mask.
void check_structure(const Target& t) {
  if (t.n < 0 || !t.offsets) throw TargetError("A must have row offsets, one more than rows");
  if (t.offsets[0] != 0) {
    throw TargetError("A has a first row offset of ", t.offsets[0], "; expected 0");
  }
  for (Index i = 0; i < t.n; ++i) {
    if (t.offsets[i + 1] < t.offsets[i]) {
      throw TargetError("A has decreasing row offsets at row ", i);
    }
  }
  if (t.nonzeros() > 0 && !(t.columns && t.weights)) {
    throw TargetError("A must have columns and weights");
  }
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
      throw TargetError("A has column ", columns[p], " in row ", i, "; expected 0 ... ", t.n - 1);
    }
    if (p > 0 && columns[p] <= columns[p - 1]) {
      throw TargetError("A must have sorted columns without duplicates; row ", i,
                        " does not, at column ", columns[p]);
    }
    if (weights[p] == 0) {
      throw TargetError("A must have entries above 0, also as shares of their rows; got 0 at row ",
                        i, ", column ", columns[p]);
    }
    if (!(weights[p] > 0 && std::isfinite(weights[p]))) {
      throw TargetError("A must have nonnegative finite entries; got ", weights[p], " at row ", i,
                        ", column ", columns[p]);
    }
    if (!t.mask.allows(0, i, columns[p], t.n, t.n)) {
      throw TargetError("A has a nonzero on a masked position, row ", i, ", column ", columns[p]);
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
  Checkpoints checkpoints;
  for (Index i = first; i < end; ++i) {
    check_row(t, i);
    const auto weights = t.row_weights(i);
    checkpoints.after(weights.empty() ? t.n : static_cast<Index>(weights.size()));
    if (weights.empty()) {
      if (!mask_leaves_nothing(t, i)) {
        throw TargetError("A must have a nonzero in every row that the mask leaves open; row ", i,
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
      throw TargetError("A must have rows that sum to 1 within ", sum_tolerance, "; row ", i,
                        " sums to ", sum, " (headfit.Target(A, normalize=True) scales the rows)");
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
    return [&t, checkpoints = Checkpoints()](Index first, Index end) mutable {
      if (t.mask.is_open() && are_sound(t, first, end)) return;
      for (Index i = first; i < end; ++i) {
        check_row(t, i);
        checkpoints.after(t.offsets[i + 1] - t.offsets[i]);
      }
    };
  };
  parallel_rows(t.n, limited_to(t.nonzeros(), run), make_worker, few_rows);
}

SomeRows::SomeRows(const Target& target, std::span<const Index> rows)
    : n_(target.n), mask_(target.mask), offsets_(static_cast<std::size_t>(target.n + 1), 0) {
  for (const Index i : rows) {
    if (i < 0 || i >= n_) {
      throw InputError("rows must lie in 0 ... ", n_ - 1, "; got ", i);
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

void CompressedRows::check_structure() const {
  if (rows < 0 || !offsets || offsets[0] != 0) {
    throw InputError("M must have row offsets, one more than rows, that start at 0");
  }
  for (Index i = 0; i < rows; ++i) {
    if (offsets[i + 1] < offsets[i]) {
      throw InputError("M has decreasing row offsets at row ", i);
    }
  }
  for (Index i = 0; i < rows; ++i) {
    for (const Column col : row_columns(i)) {
      if (col < 0 || col >= cols) {
        throw InputError("M has column ", col, " in row ", i, "; expected 0 ... ", cols - 1);
      }
    }
  }
}

void Tolerances::check() const {
  if (!(leak > 0 && leak < 1)) {
    throw InputError("leak must lie strictly between 0 and 1; got ", leak);
  }
  if (!(distortion >= 0 && std::isfinite(distortion))) {
    throw InputError("distortion must be finite and at least 0; got ", distortion);
  }
  if (!(max_logit > 0)) {
    throw InputError("max_logit must be positive; got ", max_logit);
  }
}

namespace {

constexpr double same = 1e-6;

// Writes where runs of nonzeros of a row start, and where they end. Runs that reach the last token
// have no end, nor do runs that a causal mask cuts off at the token itself.
void find_runs(const Target& t, Index row, bool is_causal, std::vector<Index>& places) {
  places.clear();
  const auto columns = t.row_columns(row);
  for (std::size_t p = 0; p < columns.size(); ++p) {
    const Index j = columns[p];
    if (p == 0 || columns[p - 1] + 1 != j) places.push_back(j);
    const bool goes_on = p + 1 < columns.size() && columns[p + 1] == j + 1;
    if (!goes_on && j != t.n - 1 && !(is_causal && j == row)) places.push_back(j + 1);
  }
}

// The greatest common divisor of all places where a run starts or ends, and of all rows whose runs
// are others than those of the row before.
Index common_divisor(const Target& t, bool is_causal) {
  std::vector<Index> before, places;
  Index size = 0;
  Checkpoints checkpoints;
  for (Index i = 0; i < t.n && size != 1; ++i) {
    find_runs(t, i, is_causal, places);
    for (const Index place : places) size = std::gcd(size, place);
    if (i > 0 && places != before) size = std::gcd(size, i);
    places.swap(before);
    checkpoints.after(t.offsets[i + 1] - t.offsets[i] + 1);
  }
  return size;
}

// Whether the weights of a row are those of the last row of its block, up to a factor.
bool has_weights_of(const Target& t, Index row, Index last, Index size,
                    std::vector<double>& of_block) {
  const auto columns = t.row_columns(row), blocks = t.row_columns(last);
  const auto weights = t.row_weights(row), wanted = t.row_weights(last);
  of_block.clear();
  std::size_t at = 0;
  for (const Column j : columns) {
    const Index first = j / size * size;
    while (at < blocks.size() && blocks[at] < first) ++at;
    if (at == blocks.size() || blocks[at] != first) return false;
    of_block.push_back(wanted[at]);
  }
  const double factor = std::accumulate(of_block.begin(), of_block.end(), 0.0) /
                        std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t p = 0; p < of_block.size(); ++p) {
    const double difference = std::log(of_block[p]) - std::log(factor) - std::log(weights[p]);
    if (!(std::abs(difference) <= same)) return false;
  }
  return true;
}

}  // namespace

Index block_size(const Target& t, bool is_causal, const Run& run) {
  check_entries(t, run);
  const Index size = common_divisor(t, is_causal);
  if (size < 2 || size >= t.n) return 0;
  std::vector<double> of_block;
  Checkpoints checkpoints;
  for (Index i = 0; i < t.n; ++i) {
    // The last row of a block sees all of it; under a causal mask earlier ones see less.
    const Index last = std::min((i / size + 1) * size, t.n) - 1;
    if (!has_weights_of(t, i, last, size, of_block)) return 0;
    checkpoints.after(t.offsets[i + 1] - t.offsets[i] + 1);
  }
  return size;
}

}  // namespace headfit
