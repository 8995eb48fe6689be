// The certificate of a given attention matrix, about its entries as they are stored.
#include <string>

#include "headfit/base/errors.hpp"
#include "headfit/certify/judge.hpp"

namespace headfit {
namespace {

using detail::judge;

// a / b for a >= 0 and b >= 0. x / 0 is infinite, 0 / 0 included, so that a weight of zero meets no
// tolerance; 0 / x is exactly 0.
Enclosure ratio(const Enclosure& a, const Enclosure& b) {
  return {b.hi > 0 ? std::max(0.0, next_down(a.lo / b.hi)) : no_bound,
          b.lo > 0 ? (a.hi > 0 ? next_up(a.hi / b.lo) : 0.0) : no_bound};
}

template <class T>
void check_shape(const Target& target, const Heads<T>& matrix) {
  if (matrix.count != 1 || matrix.rows != target.n || matrix.cols != target.n) {
    throw InputError("matrix must be one matrix of the shape of A, " + std::to_string(target.n) +
                     " x " + std::to_string(target.n) + "; got " + std::to_string(matrix.rows) +
                     " x " + std::to_string(matrix.cols));
  }
}

template <class T>
void check_entry(T value, bool allowed, Index row, Index col) {
  const std::string place = " at row " + std::to_string(row) + ", column " + std::to_string(col);
  if (!(value >= 0 && std::isfinite(value))) {
    throw NonFiniteError("matrix must have finite entries >= 0; got " + std::to_string(value) +
                         place);
  }
  if (!allowed && value != 0) {
    throw InputError("matrix must be 0 where masked; got " + std::to_string(value) + place);
  }
}

template <class Row>
void judge_row(const Target& target, const Row& m, Index i, const Tolerances& tolerances,
               CertificateRows& out) {
  const auto columns = target.row_columns(i);
  const auto weights = target.row_weights(i);
  double largest = 0, weakest = 0, difference = 0, stray = 0;
  Enclosure highest{0, 0}, lowest{0, 0};
  Index leak_column = -1;
  std::size_t p = 0;
  const auto at = static_cast<std::size_t>(i);
  for (Index j = 0; j < target.n; ++j) {
    const bool allowed = target.mask.allows(0, i, j, target.n, target.n);
    check_entry(m[j], allowed, i, j);
    const double value = static_cast<double>(m[j]);
    if (p < columns.size() && columns[p] == j) {
      const Enclosure r = ratio(Enclosure::exactly(value), Enclosure::exactly(weights[p]));
      if (p == 0 || value < weakest) weakest = value, out.weakest_column[at] = j;
      if (p == 0 || r.lo > highest.lo) out.highest_column[at] = j;
      if (p == 0 || r.lo < lowest.lo) out.lowest_column[at] = j;
      highest = p == 0 ? r : Enclosure{std::max(highest.lo, r.lo), std::max(highest.hi, r.hi)};
      lowest = p == 0 ? r : Enclosure{std::min(lowest.lo, r.lo), std::min(lowest.hi, r.hi)};
      difference += std::abs(value - weights[p++]);
    } else if (allowed) {
      if (leak_column < 0 || value > largest) largest = value, leak_column = j;
      stray += value;
    }
  }
  Enclosure leak{0, 0};
  if (leak_column >= 0 && !columns.empty()) {
    leak = ratio(Enclosure::exactly(largest), Enclosure::exactly(weakest));
  }
  // The leak is unbounded if a support entry is 0, or if an empty target row has any weight.
  if (columns.empty() ? largest > 0 : weakest == 0) leak = Enclosure::exactly(no_bound);
  Enclosure distortion{0, 0};
  if (columns.size() > 1) {
    distortion = ratio(highest, lowest) - Enclosure::exactly(1);
    distortion.lo = std::max(0.0, distortion.lo);
  }
  out.leak[i] = leak.hi;
  out.distortion[i] = distortion.hi;
  out.leak_column[at] = leak_column;
  out.verdict[at] = judge(leak, distortion, {0, 0}, tolerances);
  out.stray[i] = stray;
  out.tv[i] = (difference + stray) / 2;
}

}  // namespace

template <class T>
CertificateRows certify_matrix(const Target& target, const Heads<T>& matrix,
                               const Tolerances& tolerances, const Run& run) {
  tolerances.check();
  if (tolerances.limits_logits()) {
    throw InputError("max_logit must not be given for a matrix: it does not tell its logits");
  }
  check_shape(target, matrix);
  validate_target(target, any_sum, run);
  CertificateRows out(target.n);
  const auto make_worker = [&] {
    return [&, rows = HeadRows<T>(matrix)](Index first, Index end) mutable {
      for (Index i = first; i < end; ++i) {
        judge_row(target, rows.row(0, i), i, tolerances, out);
      }
    };
  };
  parallel_rows(target.n, run, make_worker, 16);
  return out;
}

template CertificateRows certify_matrix(const Target&, const Heads<float>&, const Tolerances&,
                                        const Run&);
template CertificateRows certify_matrix(const Target&, const Heads<double>&, const Tolerances&,
                                        const Run&);

}  // namespace headfit
