#include "headfit/logits/pack.hpp"

#include <cmath>
#include <string>

namespace headfit {

template <class T>
void throw_nonfinite(const char* name, Index head, Index heads, Index row, Index col, T value) {
  const std::string of_head = heads > 1 ? detail::joined({"head ", head, ", "}) : "";
  const char* came = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  throw NonFiniteError(name, " must be finite; got ", came, " at ", of_head, "row ", row,
                       ", column ", col);
}

namespace {

// Throws an error that names the first non-finite entry of a row. The entry is shown as it is
// stored if it is bad there, and otherwise as it is after the rotation to its position.
template <class T>
[[noreturn]] void throw_bad_entry(const char* name, Heads<T> x, Index head, Index i,
                                  const RowView<T>& read) {
  x.rotary = {};
  HeadRows<T> reader(x);
  const RowView<T> stored = reader.row(head, i);
  const RowView<T>& bad = stored.allFinite() ? read : stored;
  Index col = 0;
  while (std::isfinite(bad[col])) ++col;
  throw_nonfinite(name, head, x.count, i, col, bad[col]);
}

}  // namespace

template <class T>
RowView<T> checked_row(const char* name, HeadRows<T>& x, Index head, Index i, T& largest) {
  const RowView<T> row = x.row(head, i);
  const T *at = row.data(), *end = at + row.size();
  // Zero times an entry that is not finite is NaN, and so is a sum with it.
  const auto zero = simd::fill<T>(T(0));
  auto most = zero, zeros = zero;
  for (; end - at >= simd::lanes<T>; at += simd::lanes<T>) {
    const auto part = simd::load(at);
    most = simd::pmax(most, simd::pabs(part));
    zeros = simd::pmadd(part, zero, zeros);
  }
  T all_zeros = simd::predux(zeros);
  largest = std::max(largest, simd::predux_max(most));
  for (; at < end; ++at) {
    largest = std::max(largest, std::abs(*at));
    all_zeros += *at * T(0);
  }
  if (std::isnan(all_zeros)) throw_bad_entry(name, x.heads(), head, i, row);
  return row;
}

template <class T>
T pack_queries(HeadRows<T>& queries, const LogitSource<T>& source, Index head, Index first,
               Index count, T* out, Checkpoints& checkpoints) {
  const T scale = static_cast<T>(source.scale);
  constexpr Index group = Blocking<T>::row_group;
  const Index depth = queries.heads().cols;
  T largest = 0;
  for (Index i = 0; i < round_up(count, group); ++i) {
    T* place = out + (i / group) * group * depth + i % group;
    if (i < count) {
      const RowView<T> row = checked_row("Q", queries, head, source.row_at(first + i), largest);
      for (Index p = 0; p < depth; ++p) place[p * group] = row[p] * scale;
      checkpoints.after(depth);
    } else {
      for (Index p = 0; p < depth; ++p) place[p * group] = T(0);
    }
  }
  return largest;
}

template <class T>
PackedKeys<T>::PackedKeys(const LogitSource<T>& source, Index first_head, Index heads,
                          const Run& run, const KeyLayouts& layouts)
    : layouts_(layouts),
      keys_(source.k),
      are_in_place_(source.is_best_in_place(keys_) && keys_.cols % Blocking<T>::lanes == 0 &&
                    !source.mask.key_lengths),
      first_(first_head),
      panels_(round_up(source.k.rows, Blocking<T>::panel) / Blocking<T>::panel),
      panel_size_(source.k.cols * Blocking<T>::panel),
      row_width_(round_up(source.k.cols, Blocking<T>::lanes)),
      max_abs_(static_cast<std::size_t>(heads), 0.0) {
  if (layouts.panels) data_.ensure(heads * panels_ * panel_size_);
  if (layouts.rows && !are_in_place_) {
    row_data_.ensure(heads * panels_ * Blocking<T>::panel * row_width_);
  }
  constexpr Index per_task = 64;
  const Index tasks = (panels_ + per_task - 1) / per_task;
  std::vector<T> task_max(static_cast<std::size_t>(heads * tasks), T(0));
  parallel_tasks(heads * tasks, run, [&] {
    return [&, keys = HeadRows<T>(source.k), checkpoints = Checkpoints()](Index task) mutable {
      const Index head = first_ + task / tasks;
      const Index begin = task % tasks * per_task;
      const Index end = std::min(begin + per_task, panels_);
      const Index rows = valid_keys(source, head);
      T& largest = task_max[static_cast<std::size_t>(task)];
      for (Index p = begin; p < end; ++p) {
        largest = std::max(largest, pack(keys, head, p, rows, checkpoints));
      }
    };
  });
  for (std::size_t t = 0; t < task_max.size(); ++t) {
    double& largest = max_abs_[t / static_cast<std::size_t>(tasks)];
    largest = std::max(largest, static_cast<double>(task_max[t]));
  }
}

// Packs the keys of a panel, in each layout. Returns the largest |entry|.
template <class T>
T PackedKeys<T>::pack(HeadRows<T>& keys, Index head, Index panel, Index valid_rows,
                      Checkpoints& checkpoints) {
  constexpr Index width = Blocking<T>::panel;
  const Index depth = keys.heads().cols;
  const Index first = panel * width;
  const Index count = std::clamp<Index>(valid_rows - first, 0, width);
  T* columns = layouts_.panels ? data_.data() + place(head, panel) : nullptr;
  const bool copies_rows = layouts_.rows && !are_in_place_;
  T* rows = copies_rows ? row_data_.data() + row_place(head, first) : nullptr;
  T largest = 0;
  for (Index c = 0; c < count; ++c) {
    const RowView<T> row = checked_row("K", keys, head, first + c, largest);
    if (layouts_.panels) {
      for (Index p = 0; p < depth; ++p) columns[p * width + c] = row[p];
    }
    if (copies_rows) {
      T* end = std::copy_n(row.data(), depth, rows + c * row_width_);
      std::fill(end, rows + (c + 1) * row_width_, T(0));
    }
    checkpoints.after(depth);
  }
  for (Index p = 0; layouts_.panels && p < depth; ++p) {
    std::fill(columns + p * width + count, columns + (p + 1) * width, T(0));
  }
  if (copies_rows) std::fill(rows + count * row_width_, rows + width * row_width_, T(0));
  return largest;
}

template void throw_nonfinite(const char*, Index, Index, Index, Index, float);
template RowView<float> checked_row(const char*, HeadRows<float>&, Index, Index, float&);
template float pack_queries(HeadRows<float>&, const LogitSource<float>&, Index, Index, Index,
                            float*, Checkpoints&);
template void throw_nonfinite(const char*, Index, Index, Index, Index, double);
template RowView<double> checked_row(const char*, HeadRows<double>&, Index, Index, double&);
template double pack_queries(HeadRows<double>&, const LogitSource<double>&, Index, Index, Index,
                             double*, Checkpoints&);
template class PackedKeys<float>;
template class PackedKeys<double>;

}  // namespace headfit
