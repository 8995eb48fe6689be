#include "headfit/pattern/target.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include "headfit/base/errors.hpp"

namespace headfit {
namespace {

template <class... Parts>
[[noreturn]] void reject(const Parts&... parts) {
  std::ostringstream text;
  text.precision(17);
  (text << ... << parts);
  throw TargetError(text.str());
}

bool mask_leaves_nothing(const Mask& mask, Index row, Index n) {
  const ColumnRange open = mask.range(0, row, n, n);
  for (Index j = open.begin; j < open.end; ++j) {
    if (mask.allows(0, row, j, n, n)) return false;
  }
  return true;
}

void check_structure(const Target& t) {
  if (t.offsets[0] != 0) reject("A has a first row offset of ", t.offsets[0], "; expected 0");
  for (Index i = 0; i < t.n; ++i) {
    if (t.offsets[i + 1] < t.offsets[i]) reject("A has decreasing row offsets at row ", i);
  }
}

// Nothing is wrong with the row, masks aside: told without a branch for each entry.
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

void check_row(const Target& t, const Mask& mask, Index i) {
  if (mask.is_open() && is_sound(t, i)) return;
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
    if (!mask.allows(0, i, columns[p], t.n, t.n)) {
      reject("A has a nonzero on a masked position, row ", i, ", column ", columns[p]);
    }
  }
}

}  // namespace

TargetSummary validate_target(const Target& t, const Mask& mask, double sum_tolerance) {
  check_structure(t);
  TargetSummary summary;
  summary.nonzeros = t.nonzeros();
  std::vector<Column> column_counts(static_cast<std::size_t>(t.n), 0);
  for (Index i = 0; i < t.n; ++i) {
    check_row(t, mask, i);
    const auto weights = t.row_weights(i);
    if (weights.empty()) {
      if (!mask_leaves_nothing(mask, i, t.n)) {
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
    for (const Column j : t.row_columns(i)) ++column_counts[static_cast<std::size_t>(j)];
  }
  if (t.n > 0) {
    summary.per_column = *std::max_element(column_counts.begin(), column_counts.end());
  }
  return summary;
}

}  // namespace headfit
