#include "headfit/logits/source.hpp"

#include <vector>

namespace headfit {
namespace {

void check_sparse(const Offset* offsets, const Column* columns, Index rows, Index cols) {
  if (!columns || offsets[0] != 0) {
    throw InputError("a sparse mask must have columns, and row offsets that start at 0");
  }
  for (Index i = 0; i < rows; ++i) {
    if (offsets[i + 1] < offsets[i]) {
      throw InputError("a sparse mask has decreasing row offsets at row ", i);
    }
  }
  for (Index i = 0; i < rows; ++i) {
    Index before = -1;
    for (Offset p = offsets[i]; p < offsets[i + 1]; ++p) {
      if (columns[p] <= before || columns[p] >= cols) {
        throw InputError("a sparse mask must have sorted columns in 0 ... ", cols - 1, "; row ", i,
                         " has column ", columns[p]);
      }
      before = columns[p];
    }
  }
}

bool is_sparse_alone(const Mask& mask) {
  return mask.sparse_offsets && mask.besides_sparse().is_open();
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
  // Columns of the sparse matrix are not searched for in it.
  const Mask others = mask.besides_sparse();
  const auto add_if_allowed = [&](Index col) {
    if (others.allows(head, row, col, rows, cols)) add(col, col + 1);
  };
  const ColumnRange open = mask.range(head, row, rows, cols);
  if (mask.sparse_offsets) {
    for (const Column col : mask.sparse_row(row)) add_if_allowed(col);
  } else if (mask.has_pattern()) {
    for (Index col = open.begin; col < open.end; ++col) add_if_allowed(col);
  } else {
    add(open.begin, open.end);
  }
}

}  // namespace

bool Mask::is_shared(Index heads, Index cols) const {
  bool differs = heads > 1 && dense && dense_head != 0;
  for (Index h = 1; h < heads; ++h) {
    if (key_lengths) differs |= key_lengths[h] != key_lengths[0];
    for (Index c = 0; keys && c < cols; ++c) differs |= has_key(h, c) != has_key(0, c);
  }
  return !differs;
}

void check_mask(const Mask& mask, Index heads, Index rows, Index cols) {
  constexpr Index widest = Index(1) << 48;  // positions beside a window do not overflow
  for (const Index side : {mask.left.value_or(0), mask.right.value_or(0)}) {
    if (side < 0 || side > widest) {
      throw InputError("the sides of a window must lie in 0 ... 2^48; got ", side);
    }
  }
  for (Index h = 0; mask.key_lengths && h < heads; ++h) {
    if (mask.key_lengths[h] < 0 || mask.key_lengths[h] > cols) {
      throw InputError("key_lengths must lie in 0 ... ", cols, "; got ", mask.key_lengths[h]);
    }
  }
  if (mask.sparse_offsets) check_sparse(mask.sparse_offsets, mask.sparse_columns, rows, cols);
}

bool masks_agree(const Mask& a, const Mask& b, Index heads, Index rows, Index cols) {
  std::vector<ColumnRange> one, other;
  const bool are_sparse = is_sparse_alone(a) && is_sparse_alone(b);
  for (Index h = 0; h < heads; ++h) {
    for (Index i = 0; i < rows; ++i) {
      if (are_sparse && std::ranges::equal(a.sparse_row(i), b.sparse_row(i))) continue;
      find_runs(a, h, i, rows, cols, one);
      find_runs(b, h, i, rows, cols, other);
      if (one != other) return false;
    }
  }
  return true;
}

template <class T>
void LogitSource<T>::validate() const {
  if (q.cols != k.cols) {
    throw InputError("Q and K must have the same head size; got ", q.cols, " and ", k.cols);
  }
  if (group < 1 || q.count != group * k.count) {
    throw InputError("the heads of K must divide those of Q; got ", k.count, " and ", q.count);
  }
  const auto is_normal = [](double x) {
    return x >= std::numeric_limits<T>::min() && x <= std::numeric_limits<T>::max();
  };
  if (!is_normal(std::abs(scale))) {
    throw InputError("scale must be finite, nonzero and a normal number of the arrays' dtype; got ",
                     scale);
  }
  if (softcap != 0 && !is_normal(softcap)) {
    throw InputError("softcap must be positive and a normal number of the arrays' dtype; got ",
                     softcap);
  }
  for (Index h = 0; sinks && h < q.count; ++h) {
    constexpr auto most = static_cast<double>(std::numeric_limits<T>::max());
    if (!(std::abs(sinks[h]) <= most) && sinks[h] != -std::numeric_limits<double>::infinity()) {
      throw InputError("sinks must be finite in the arrays' dtype, or -inf for none; got ",
                       sinks[h], " for head ", h);
    }
  }
  for (Index place = 0; rows && place < row_count(); ++place) {
    if (row_at(place) < 0 || row_at(place) >= q.rows) {
      throw InputError("rows must lie in 0 ... ", q.rows - 1, "; got ", row_at(place), " at place ",
                       place);
    }
  }
}

template struct LogitSource<float>;
template struct LogitSource<double>;

}  // namespace headfit
