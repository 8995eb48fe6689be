#include "headfit/logits/check_mask.hpp"

#include <string>
#include <vector>

namespace headfit {
namespace {

void check_sparse(const Offset* offsets, const Column* columns, Index rows, Index cols) {
  if (!columns || offsets[0] != 0) {
    throw InputError("a sparse mask must have columns, and row offsets that start at 0");
  }
  for (Index i = 0; i < rows; ++i) {
    if (offsets[i + 1] < offsets[i]) {
      throw InputError("a sparse mask has decreasing row offsets at row " + std::to_string(i));
    }
  }
  for (Index i = 0; i < rows; ++i) {
    Index before = -1;
    for (Offset p = offsets[i]; p < offsets[i + 1]; ++p) {
      if (columns[p] <= before || columns[p] >= cols) {
        throw InputError("a sparse mask must have sorted columns in 0 ... " +
                         std::to_string(cols - 1) + "; row " + std::to_string(i) + " has column " +
                         std::to_string(columns[p]));
      }
      before = columns[p];
    }
  }
}

// Replaces `runs` by the ranges of neighbouring columns that a row may attend to.
void find_runs(const Mask& mask, Index head, Index row, Index rows, Index cols,
               std::vector<ColumnRange>& runs) {
  runs.clear();
  const auto add = [&](Index begin, Index end) {
    if (!runs.empty() && runs.back().end == begin) {
      runs.back().end = end;
    } else if (begin < end) {
      runs.push_back({begin, end});
    }
  };
  const auto add_if_allowed = [&](Index col) {
    if (mask.allows(head, row, col, rows, cols)) add(col, col + 1);
  };
  const ColumnRange open = mask.range(head, row, rows, cols);
  if (mask.sparse_offsets) {
    for (Offset p = mask.sparse_offsets[row]; p < mask.sparse_offsets[row + 1]; ++p) {
      add_if_allowed(mask.sparse_columns[p]);
    }
  } else if (mask.has_pattern()) {
    for (Index col = open.begin; col < open.end; ++col) add_if_allowed(col);
  } else {
    add(open.begin, open.end);
  }
}

}  // namespace

void check_mask(const Mask& mask, Index heads, Index rows, Index cols) {
  if (mask.left.value_or(0) < 0 || mask.right.value_or(0) < 0) {
    throw InputError("the window of a mask must not be negative");
  }
  for (Index h = 0; mask.key_lengths && h < heads; ++h) {
    if (mask.key_lengths[h] < 0 || mask.key_lengths[h] > cols) {
      throw InputError("key_lengths must lie in 0 ... " + std::to_string(cols) + "; got " +
                       std::to_string(mask.key_lengths[h]));
    }
  }
  if (mask.sparse_offsets) check_sparse(mask.sparse_offsets, mask.sparse_columns, rows, cols);
}

bool masks_agree(const Mask& a, const Mask& b, Index heads, Index rows, Index cols) {
  std::vector<ColumnRange> one, other;
  for (Index h = 0; h < heads; ++h) {
    for (Index i = 0; i < rows; ++i) {
      find_runs(a, h, i, rows, cols, one);
      find_runs(b, h, i, rows, cols, other);
      if (one != other) return false;
    }
  }
  return true;
}

}  // namespace headfit
