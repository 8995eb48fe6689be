#include "headfit/soft/target_rows.hpp"

#include "headfit/attention/attention.hpp"
#include "headfit/descent/row_divergence.hpp"

namespace headfit::soft {
namespace {

constexpr double nothing = -std::numeric_limits<double>::infinity();

}  // namespace

template <class T>
TargetRows<T>::TargetRows(const SoftTarget<T>& target, const Run& run)
    : target_(target),
      entropy_(static_cast<std::size_t>(target.rows()), 0.0),
      log_sum_(entropy_.size(), nothing) {
  if (target_.attention) {
    measure_attention(run);
  } else {
    measure_matrix(run);
  }
  for (Index i = 0; i < rows(); ++i) attending_ += attends(i);
}

template <class T>
void TargetRows<T>::measure_attention(const Run& run) {
  if (target_.attention->q.count != 1) throw InputError("the target must be one head");
  std::vector<double> largest(entropy_.size());
  attention_stats<T>(*target_.attention,
                     {entropy_.data(), largest.data(), log_sum_.data(), nullptr, {}}, run);
}

template <class T>
void TargetRows<T>::measure_matrix(const Run& run) {
  const auto measure = [&](Index first, Index end) {
    std::visit([&](const auto& matrix) {
      for (Index i = first; i < end; ++i) measure_row(matrix, i);
    }, *target_.matrix);
  };
  parallel_rows(rows(), run, [&] { return measure; }, 16);
}

template <class T>
template <class Stored>
void TargetRows<T>::measure_row(const MatrixView<Stored>& matrix, Index i) {
  const Stored* row = matrix.data() + i * matrix.outerStride();
  double sum = 0, moment = 0;
  Index allowed = 0;
  for (Index j = 0; j < cols(); ++j) {
    const double a = as<double>(row[j]);
    if (a == 0 && allowed > 0) continue;
    const bool may = target_.mask.allows(0, i, j, rows(), cols());
    allowed += may;
    if (a == 0) continue;
    if (!std::isfinite(a)) throw_nonfinite("the target", 0, 1, i, j, a);
    if (a < 0) {
      throw TargetError("the target must not be negative; got ", a, " at row ", i, ", column ", j);
    }
    if (!may) {
      throw TargetError("the target must be zero where the mask forbids attention; got ", a,
                        " at row ", i, ", column ", j);
    }
    sum += a;
    moment += a * std::log(a);
  }
  if (allowed == 0) return;
  if (!(std::abs(sum - 1) <= sum_tolerance)) {
    throw TargetError("every row of the target must sum to 1; row ", i, " sums to ", sum);
  }
  const auto at = static_cast<std::size_t>(i);
  log_sum_[at] = std::log(sum);
  entropy_[at] = log_sum_[at] - moment / sum;
}

template <class T>
ColumnRange TargetRows<T>::columns(Index row) const {
  return target_.attention ? target_.attention->mask.columns(0, row, rows(), cols())
                           : ColumnRange{0, cols()};
}

template <class T>
bool TargetRows<T>::is_within(const Mask& mask) const {
  const Mask& own = target_.attention ? target_.attention->mask : target_.mask;
  if (!own.sparse_offsets || !mask.sparse_offsets) return false;
  for (Index i = 0; i < rows(); ++i) {
    if (!std::ranges::includes(mask.sparse_row(i), own.sparse_row(i))) return false;
  }
  return true;
}

template <class T>
void TargetRows<T>::pack(const KeyLayouts& layouts, const Run& run) {
  if (target_.attention) keys_.emplace(*target_.attention, 0, 1, run, layouts);
}

template <class T>
TargetRows<T>::Reader::Reader(const TargetRows& target)
    : target_(target), source_(target.target_.attention.value_or(LogitSource<T>{})) {
  if (target.keys_) logits_.emplace(source_, *target.keys_);
}

template <class T>
void TargetRows<T>::Reader::read(const RowBlock& block, std::span<const Index> row_numbers, T* out,
                                 Index stride) {
  source_.rows = row_numbers;
  const Index cols = block.col_end - block.col_begin;
  if (logits_) logits_->read(block, out, stride);
  for (Index r = 0; r < block.count; ++r) {
    const Index row = source_.row_at(block.first + r);
    if (logits_) {
      to_weights(row, out + r * stride, round_up(cols, simd::lanes<T>));
    } else {
      copy(row, cols, [&](Index c) { return block.col_begin + c; }, out + r * stride);
    }
  }
}

template <class T>
T* TargetRows<T>::Reader::read(Index row, std::span<const Column> columns) {
  if (logits_) {
    const Entries<T> entries = logits_->read(0, row, columns);
    to_weights(row, entries.data, entries.padded());
    return entries.data;
  }
  const Entries<T> entries{weights_.ensure(Entries<T>{nullptr, columns}.padded()), columns};
  copy(row, entries.count(), [&](Index c) { return entries.column(c); }, entries.data);
  return entries.data;
}

template <class T>
void TargetRows<T>::Reader::to_weights(Index row, T* x, Index padded) const {
  const double log_sum = target_.log_sum_[static_cast<std::size_t>(row)];
  if (log_sum == nothing) {
    std::fill(x, x + padded, T(0));
    return;
  }
  const auto shift = simd::RowShift<T>::at(static_cast<T>(log_sum));
  const double left_out =
      static_cast<double>(shift.subtract) + static_cast<double>(shift.exponent) * std::numbers::ln2;
  const auto factor = simd::fill(static_cast<T>(std::exp(left_out - log_sum)));
  const auto limit = simd::fill(static_cast<T>(log_sum) - descent::negligible<T>);
  for (Index c = 0; c < padded; c += simd::lanes<T>) {
    simd::store(x + c, simd::pmul(factor, descent::exp_above<T>(simd::load(x + c), limit, shift)));
  }
}

template <class T>
template <class Place>
void TargetRows<T>::Reader::copy(Index row, Index count, const Place& place, T* to) const {
  const double log_sum = target_.log_sum_[static_cast<std::size_t>(row)];
  const T factor = log_sum == nothing ? T(0) : static_cast<T>(std::exp(-log_sum));
  std::visit([&](const auto& matrix) {
    const auto* from = matrix.data() + row * matrix.outerStride();
    const T least = std::exp(-descent::negligible<T>);
    for (Index c = 0; c < count; ++c) {
      const T a = as<T>(from[place(c)]);
      to[c] = a > least ? factor * a : T(0);
    }
  }, *target_.target_.matrix);
  std::fill(to + count, to + round_up(count, simd::lanes<T>), T(0));
}

template class TargetRows<float>;
template class TargetRows<double>;

}  // namespace headfit::soft
