// The certificate of a given attention matrix, about its entries as they are stored.
#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <string>

#include "headfit/base/errors.hpp"
#include "headfit/certify/folds.hpp"

namespace headfit {
namespace {

// a / b for a >= 0 and b >= 0. x / 0 is infinite, 0 / 0 included, so that a weight of zero meets no
// tolerance; 0 / x is exactly 0.
Enclosure ratio(const Enclosure& a, const Enclosure& b) {
  return {b.hi > 0 ? std::max(0.0, next_down(a.lo / b.hi)) : no_bound,
          b.lo > 0 ? (a.hi > 0 ? next_up(a.hi / b.lo) : 0.0) : no_bound};
}

void check_shape(const Target& target, Index count, Index rows, Index cols) {
  if (count != 1 || rows != target.n || cols != target.n) {
    throw InputError("matrix must be one matrix of the shape of A, ", target.n, " x ", target.n,
                     "; got ", rows, " x ", cols);
  }
}

template <class T>
void check_entry(T value, bool allowed, Index row, Index col) {
  const bool is_weight = value >= 0 && value <= std::numeric_limits<T>::max();
  if (is_weight && (allowed || value == 0)) return;
  const std::string came = detail::joined({value, " at row ", row, ", column ", col});
  if (!is_weight) throw NonFiniteError("matrix must have finite entries >= 0; got ", came);
  throw InputError("matrix must be 0 where masked; got ", came);
}

// Judges a row whose entries come in the order of their columns.
class RowJudge {
 public:
  RowJudge(const Target& target, Index row)
      : target_(target),
        row_(row),
        columns_(target.row_columns(row)),
        weights_(target.row_weights(row)),
        open_(target.mask.range(0, row, target.n, target.n)),
        has_pattern_(target.mask.has_pattern()) {}

  bool allows(Index col) const {
    return col >= open_.begin && col < open_.end &&
           (!has_pattern_ || target_.mask.allows(0, row_, col, target_.n, target_.n));
  }

  template <class T>
  void take(T entry, Index col) {
    const bool allowed = allows(col);
    check_entry(entry, allowed, row_, col);
    const auto value = static_cast<double>(entry);
    while (p_ < columns_.size() && columns_[p_] < col) on_support(0);
    if (p_ < columns_.size() && columns_[p_] == col) {
      on_support(value);
    } else if (allowed) {
      off_support(value, col);
    }
  }

  // Takes all entries of a row, between the columns of the support many at a time.
  template <class T>
  void take_row(const RowView<T>& entries) {
    if (has_pattern_) {
      for (Index j = 0; j < entries.size(); ++j) take(entries[j], j);
      return;
    }
    const Index begin = open_.begin, end = std::max(begin, open_.end);
    check_entries(entries, 0, begin, false);
    Index first = begin;
    for (const Column col : columns_) {
      take_off_support(entries, first, col);
      take(entries[col], col);
      first = col + 1;
    }
    take_off_support(entries, first, end);
    check_entries(entries, end, entries.size(), false);
  }

  // For a sparse matrix: takes the first column off the support that the mask allows, unless it is
  // stored. It is 0, and where nothing off the support is larger the report names this column.
  void take_first_zero(std::span<const Column> stored) {
    const auto is_first = [&](Index col) {
      return !std::binary_search(columns_.begin(), columns_.end(), static_cast<Column>(col)) &&
             allows(col);
    };
    Index first = open_.begin;
    if (target_.mask.sparse_offsets) {
      const auto columns = target_.mask.sparse_row(row_);
      const auto found = std::find_if(columns.begin(), columns.end(), is_first);
      first = found == columns.end() ? open_.end : Index(*found);
    } else {
      while (first < open_.end && !is_first(first)) ++first;
    }
    const bool is_stored =
        std::binary_search(stored.begin(), stored.end(), static_cast<Column>(first));
    if (first < open_.end && !is_stored) off_support(0, first);
  }

  void finish(const Tolerances& tolerances, CertificateRows& out) {
    while (p_ < columns_.size()) on_support(0);
    Enclosure leak{0, 0};
    if (leak_column_ >= 0 && !columns_.empty()) {
      leak = ratio(Enclosure::exactly(largest_), Enclosure::exactly(weakest_));
    }
    // The leak is unbounded if a support entry is 0, or if an empty target row has any weight.
    if (columns_.empty() ? largest_ > 0 : weakest_ == 0) leak = Enclosure::exactly(no_bound);
    Enclosure distortion{0, 0};
    if (columns_.size() > 1) {
      distortion = ratio(highest_, lowest_) - Enclosure::exactly(1);
      distortion.lo = std::max(0.0, distortion.lo);
    }
    const auto at = static_cast<std::size_t>(row_);
    out.leak[row_] = leak.hi;
    out.distortion[row_] = distortion.hi;
    out.leak_column[at] = leak_column_;
    out.weakest_column[at] = weakest_column_;
    out.highest_column[at] = highest_column_;
    out.lowest_column[at] = lowest_column_;
    out.verdict[at] = detail::judge(leak, distortion, {0, 0}, tolerances);
    const double stray = std::accumulate(stray_.begin(), stray_.end(), 0.0);
    out.stray[row_] = stray;
    out.tv[row_] = (difference_ + stray) / 2;
  }

 private:
  void on_support(double value) {
    const Index col = columns_[p_];
    const Enclosure r = ratio(Enclosure::exactly(value), Enclosure::exactly(weights_[p_]));
    if (p_ == 0 || value < weakest_) weakest_ = value, weakest_column_ = col;
    if (p_ == 0 || r.lo > highest_.lo) highest_column_ = col;
    if (p_ == 0 || r.lo < lowest_.lo) lowest_column_ = col;
    highest_ = p_ == 0 ? r : Enclosure{std::max(highest_.lo, r.lo), std::max(highest_.hi, r.hi)};
    lowest_ = p_ == 0 ? r : Enclosure{std::min(lowest_.lo, r.lo), std::min(lowest_.hi, r.hi)};
    difference_ += std::abs(value - weights_[p_++]);
  }

  template <class T>
  void check_entries(const RowView<T>& entries, Index first, Index end, bool allowed) const {
    const T most = allowed ? std::numeric_limits<T>::max() : 0;
    const T* x = entries.data();
    int bad = 0;  // without branches, so that compilers look at many entries at once
    for (Index j = first; j < end; ++j) bad |= int{!(x[j] >= 0)} | int{!(x[j] <= most)};
    for (Index j = first; j < end && bad != 0; ++j) check_entry(x[j], allowed, row_, j);
  }

  template <class T>
  void take_off_support(const RowView<T>& entries, Index first, Index end) {
    if (first >= end) return;
    check_entries(entries, first, end, true);
    add_stray(entries.data(), first, end);
    const auto run = entries.segment(first, end - first);
    const T most = run.maxCoeff();
    if (leak_column_ >= 0 && most <= largest_) return;
    largest_ = most;
    leak_column_ = first + (std::ranges::find(run, most) - run.begin());
  }

  template <class T>
  void add_stray(const T* x, Index first, Index end) {
    auto sums = stray_;
    for (; first < end && first % chains != 0; ++first) sums[first % chains] += x[first];
    for (; first + chains <= end; first += chains) {
      for (Index c = 0; c < chains; ++c) sums[c] += x[first + c];
    }
    for (; first < end; ++first) sums[first % chains] += x[first];
    stray_ = sums;
  }

  void off_support(double value, Index col) {
    if (leak_column_ < 0 || value > largest_) largest_ = value, leak_column_ = col;
    stray_[col % chains] += value;
  }

  // Columns are summed in chains that do not wait for each other: one for each remainder, so that
  // zeros that are not stored change no bit.
  static constexpr Index chains = 8;

  const Target& target_;
  Index row_;
  std::span<const Column> columns_;
  std::span<const double> weights_;
  ColumnRange open_;
  bool has_pattern_;
  std::size_t p_ = 0;  // how many entries of the support were taken
  double largest_ = 0, weakest_ = 0, difference_ = 0;
  std::array<double, chains> stray_{};
  Enclosure highest_{0, 0}, lowest_{0, 0};
  Index leak_column_ = -1, weakest_column_ = -1, highest_column_ = -1, lowest_column_ = -1;
};

// Judges every row; make_reader() gives each thread a function that shows a row's entries to a judge.
template <class MakeReader>
CertificateRows judge_rows(const Target& target, const Tolerances& tolerances, const Run& run,
                           const MakeReader& make_reader) {
  tolerances.check();
  if (tolerances.limits_logits()) {
    throw InputError("max_logit must not be given for a matrix: it does not tell its logits");
  }
  validate_target(target, any_sum, run);
  CertificateRows out(target.n);
  const auto make_worker = [&] {
    return [&, read = make_reader()](Index first, Index end) mutable {
      for (Index i = first; i < end; ++i) {
        RowJudge row(target, i);
        read(i, row);
        row.finish(tolerances, out);
      }
    };
  };
  parallel_rows(target.n, run, make_worker, 16);
  return out;
}

}  // namespace

template <class T>
CertificateRows certify_matrix(const Target& target, const Heads<T>& matrix,
                               const Tolerances& tolerances, const Run& run) {
  check_shape(target, matrix.count, matrix.rows, matrix.cols);
  return judge_rows(target, tolerances, run, [&] {
    return [rows = HeadRows<T>(matrix)](Index i, RowJudge& judge) mutable {
      judge.take_row(rows.row(0, i));
    };
  });
}

template CertificateRows certify_matrix(const Target&, const Heads<float>&, const Tolerances&,
                                        const Run&);
template CertificateRows certify_matrix(const Target&, const Heads<double>&, const Tolerances&,
                                        const Run&);

CertificateRows certify_sparse_matrix(const Target& target, const CompressedRows& matrix,
                                      const Tolerances& tolerances, const Run& run) {
  check_shape(target, 1, matrix.rows, matrix.cols);
  matrix.check_structure();
  return judge_rows(target, tolerances, run, [&] {
    return [&](Index i, RowJudge& judge) {
      const auto columns = matrix.row_columns(i);
      if (std::adjacent_find(columns.begin(), columns.end(), std::greater_equal()) !=
          columns.end()) {
        throw InputError("matrix must have ascending columns in row ", i);
      }
      judge.take_first_zero(columns);
      for (std::size_t p = 0; p < columns.size(); ++p) {
        judge.take(matrix.weights[matrix.offsets[i] + Offset(p)], columns[p]);
      }
    };
  });
}

}  // namespace headfit
