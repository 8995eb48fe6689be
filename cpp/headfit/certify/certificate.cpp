#include "headfit/certify/certificate.hpp"

#include <string>

#include "headfit/base/errors.hpp"
#include "headfit/certify/folds.hpp"

namespace headfit {

CertificateRows::CertificateRows(Index n)
    : leak(Vector<double>::Zero(n)),
      distortion(Vector<double>::Zero(n)),
      tv(Vector<double>::Zero(n)),
      stray(Vector<double>::Zero(n)),
      largest_logit(Vector<double>::Zero(n)),
      verdict(static_cast<std::size_t>(n), Verdict::undecided),
      leak_column(static_cast<std::size_t>(n), -1),
      weakest_column(static_cast<std::size_t>(n), -1),
      highest_column(static_cast<std::size_t>(n), -1),
      lowest_column(static_cast<std::size_t>(n), -1) {}

namespace {

using detail::BiasedFold;
using detail::CompareFold;
using detail::judge;
using detail::MassFold;
using detail::Norms;
using detail::Scan;

template <class T>
void scan_rows(const Scan<T>& scan, const LogitSource<T>& source, const Run& run) {
  if (scan.bias.is_set()) {
    stream_tiles(source, run, [&] { return BiasedFold<T>(scan); });
  } else if (scan.options.mass) {
    stream_tiles(source, run, [&] { return MassFold<T>(scan); });
  } else {
    stream_tiles(source, run, [&] { return CompareFold<T>(scan); });
  }
}

template <class T>
void refuse_other_logits(const LogitSource<T>& source) {
  if (source.q.rotary.table || source.k.rotary.table || source.sinks) {
    throw InputError("a certificate takes no rotary positions and no sinks");
  }
}

void check_shapes(const Target& target, Index heads, Index rows, Index cols) {
  if (heads != 1 || rows != target.n || cols != target.n) {
    throw InputError("Q and K must be single matrices with one row for each of the " +
                     std::to_string(target.n) + " rows of A; got " + std::to_string(rows) +
                     " and " + std::to_string(cols));
  }
}

// The errors of Q and K: none at all, or one for each row.
void check_errors(std::span<const double> errors, Index n, const char* name) {
  if (!errors.empty() && static_cast<Index>(errors.size()) != n) {
    throw InputError("the errors of " + std::string(name) + " must be one for each of the " +
                     std::to_string(n) + " rows; got " + std::to_string(errors.size()));
  }
  for (const double e : errors) {
    if (!(e >= 0)) {
      throw InputError("the errors of " + std::string(name) + " must be at least 0; got " +
                       std::to_string(e));
    }
  }
}

// The same queries or keys, widened to double as their rows are read.
template <class T>
Heads<double> in_double(const Heads<T>& x) {
  return {x.data, x.count, x.rows, x.cols, x.head_stride, x.row_stride};
}

Target under_mask(Target target, const Mask& mask) {
  target.mask = mask;
  return target;
}

// Scans the rows that are still undecided once more, in double.
template <class T>
void rescan_in_double(const Scan<T>& scan, const Run& run) {
  std::vector<Index> open;
  for (Index place = 0; place < scan.source.row_count(); ++place) {
    const Index i = scan.source.row_at(place);
    if (scan.out.verdict[static_cast<std::size_t>(i)] == Verdict::undecided) open.push_back(i);
  }
  scan.out.rescanned = static_cast<Index>(open.size());
  if (open.empty()) return;
  LogitSource<double> source;
  source.q = in_double(scan.source.q);
  source.k = in_double(scan.source.k);
  source.scale = scan.source.scale;
  source.mask = scan.source.mask;
  source.rows = std::span<const Index>(open);
  const Scan<double> again{scan.target, source,          scan.bias,    scan.path,
                           scan.norms,  scan.tolerances, scan.options, scan.out};
  scan_rows(again, source, run);
}

}  // namespace

template <class T>
CertificateRows certify_logits(const Target& target, const LogitSource<T>& source,
                               const Tolerances& tolerances, const CertifyOptions& options,
                               const Run& run) {
  tolerances.check();
  check_shapes(target, source.q.count, source.q.rows, source.k.rows);
  refuse_other_logits(source);
  validate_target(under_mask(target, source.mask), any_sum, run);
  check_errors(options.errors.q, target.n, "Q");
  check_errors(options.errors.k, target.n, "K");
  const StandardArithmetic arithmetic;
  CertificateRows out(target.n);
  Norms norms = detail::bound_norms(source, options.errors);
  if (!options.kernel.is_exact()) norms.bias_max = detail::largest_bias(source.bias, target.n);
  out.q_norm = norms.q_max;
  out.k_norm = norms.k_max;
  // The scan computes products. The soft-cap and a bias are applied to their enclosures.
  const detail::LogitPath path(options.kernel, source.scale, source.softcap, source.q.cols);
  LogitSource<T> products = source;
  products.softcap = 0;
  products.bias = {};
  const Scan<T> scan{target, products, source.bias, path, norms, tolerances, options, out};
  if (options.scans != Scans::in_double) {
    scan_rows(scan, products, run);
    for (Index place = 0; place < source.row_count(); ++place) {
      out.rounding_bound = std::max(out.rounding_bound, scan.radius(source.row_at(place)));
    }
  }
  if constexpr (!std::is_same_v<T, double>) {
    if (options.scans != Scans::first) rescan_in_double(scan, run);
  }
  if (target.n > 0) out.max_logit = out.largest_logit.maxCoeff();
  return out;
}

template CertificateRows certify_logits(const Target&, const LogitSource<float>&, const Tolerances&,
                                        const CertifyOptions&, const Run&);
template CertificateRows certify_logits(const Target&, const LogitSource<double>&,
                                        const Tolerances&, const CertifyOptions&, const Run&);

// The certificate of a given attention matrix, about its entries as they are stored.
namespace {

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
  const bool is_weight = value >= 0 && value <= std::numeric_limits<T>::max();
  if (is_weight && (allowed || value == 0)) return;
  const std::string came =
      std::to_string(value) + " at row " + std::to_string(row) + ", column " + std::to_string(col);
  if (!is_weight) throw NonFiniteError("matrix must have finite entries >= 0; got " + came);
  throw InputError("matrix must be 0 where masked; got " + came);
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
  const ColumnRange open = target.mask.range(0, i, target.n, target.n);
  const bool has_pattern = target.mask.has_pattern();
  for (Index j = 0; j < target.n; ++j) {
    const bool allowed = j >= open.begin && j < open.end &&
                         (!has_pattern || target.mask.allows(0, i, j, target.n, target.n));
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
