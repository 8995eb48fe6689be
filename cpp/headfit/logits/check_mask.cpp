#include "headfit/logits/check_mask.hpp"

#include <string>

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

}  // namespace headfit
