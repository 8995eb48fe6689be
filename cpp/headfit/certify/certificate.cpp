#include "headfit/certify/certificate.hpp"

#include "headfit/certify/judge.hpp"
#include "headfit/certify/support.hpp"
#include "headfit/pattern/support_cursor.hpp"
#include "headfit/scores/softmax_row.hpp"
#include "headfit/scores/stream.hpp"

namespace headfit {

CertificateRows::CertificateRows(Index n)
    : leak(Vector<double>::Zero(n)),
      distortion(Vector<double>::Zero(n)),
      tv(Vector<double>::Zero(n)),
      stray(Vector<double>::Zero(n)),
      verdict(static_cast<std::size_t>(n), Verdict::undecided),
      leak_column(static_cast<std::size_t>(n), -1),
      weakest_column(static_cast<std::size_t>(n), -1),
      highest_column(static_cast<std::size_t>(n), -1),
      lowest_column(static_cast<std::size_t>(n), -1) {}

namespace {

using detail::check_arguments;
using detail::judge;
using detail::Norms;
using detail::SupportRow;

// What one scan looks at, shared by all threads; rows are written once each.
template <class T>
struct Scan {
  const Target& target;
  const LogitSource<T>& source;
  const Norms& norms;
  const InputErrors& errors;
  const Tolerances& tolerances;
  bool mass;
  CertificateRows& out;
  Vector<double>& row_max_logit;  // largest |logit| of each row

  // A bound of the error of every logit that the stream computes for a row.
  double radius(Index row) const {
    // The scale is rounded, then multiplied into q: two roundings beside the dot product's d.
    const DotBound bound = DotBound::of<T>(source.q.cols, source.q.cols + 2);
    double r = bound.radius(source.scale, norms.q[row], norms.k_max);
    if (!errors.q.empty()) {
      r += detail::input_radius(source.scale, norms.q[row], norms.k_max,
                                errors.q[static_cast<std::size_t>(row)], norms.k_error_max);
    }
    return next_up(r);
  }
};

// Keeps, for each row, the largest logit off the support and (for the mass) the sum
// of exponentials off the support.
template <class T>
class CertificateFold {
 public:
  explicit CertificateFold(const Scan<T>& scan) : scan_(scan) {}

  void begin(const RowBlock& block) {
    rows_.resize(static_cast<std::size_t>(block.count));
    for (Index r = 0; r < block.count; ++r) {
      Row& row = rows_[static_cast<std::size_t>(r)];
      const Index i = scan_.source.row_at(block.first + r);
      row = {};
      row.support = SupportCursor(scan_.target, i);
    }
  }

  void tile(const RowBlock&, const Tile<T>& tile) {
    constexpr T hidden = -std::numeric_limits<T>::infinity();
    const Index padded = tile.padded_cols();
    for (Index r = 0; r < tile.count; ++r) {
      Row& row = rows_[static_cast<std::size_t>(r)];
      T* x = tile.row(r);
      row.support.hide(x, tile);
      const T max = row_max(x, padded);
      if (max == hidden) continue;
      if (max > row.largest) {
        row.largest = max;
        row.column = tile.col + (std::find(x, x + tile.cols, max) - x);
      }
      row.smallest = std::min(row.smallest, row_min_finite(x, padded));
      if (scan_.mass) {
        row.sum.raise(max);
        row.sum.sum += exp_sum<T, Exponentials::discard>(x, padded, row.sum.shift);
      }
    }
  }

  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      finish(scan_.source.row_at(block.first + r), rows_[static_cast<std::size_t>(r)]);
    }
  }

 private:
  struct Row {
    SupportCursor support;
    T largest = -std::numeric_limits<T>::infinity();
    T smallest = std::numeric_limits<T>::infinity();
    Index column = -1;
    OnlineSum<T> sum;
  };

  // The least logit, where -inf (masked, or on the support) does not count.
  static T row_min_finite(const T* x, Index padded) {
    namespace ei = simd::ei;
    const auto hidden = simd::fill<T>(-std::numeric_limits<T>::infinity());
    const auto none = simd::fill<T>(std::numeric_limits<T>::infinity());
    auto best = none;
    for (Index c = 0; c < padded; c += simd::lanes<T>) {
      const auto s = simd::load(x + c);
      best = ei::pmin(best, ei::pselect(ei::pcmp_eq(s, hidden), none, s));
    }
    return ei::predux_min(best);
  }

  void finish(Index i, const Row& row) {
    const SupportRow support =
        detail::enclose_support(scan_.target, scan_.source, scan_.norms, scan_.errors, i);
    CertificateRows& out = scan_.out;
    const auto at = static_cast<std::size_t>(i);
    Enclosure leak{0, 0};
    if (row.column >= 0 && support.weakest >= 0) {
      const Enclosure largest =
          Enclosure::around(static_cast<double>(row.largest), scan_.radius(i));
      leak = exp(largest - support.least);
    }
    Enclosure distortion = expm1(support.spread);
    if (scan_.target.row_columns(i).size() <= 1) distortion = {0, 0};
    out.leak[i] = leak.hi;
    out.distortion[i] = distortion.hi;
    out.verdict[at] = judge(leak, distortion, scan_.tolerances);
    out.leak_column[at] = row.column;
    out.weakest_column[at] = support.weakest;
    out.highest_column[at] = support.highest;
    out.lowest_column[at] = support.lowest;
    double largest_logit = 0;
    if (row.column >= 0) {
      largest_logit = std::max(std::abs(static_cast<double>(row.largest)),
                               std::abs(static_cast<double>(row.smallest)));
    }
    scan_.row_max_logit[i] = std::max(largest_logit, finish_mass(i, row));
  }

  // Total variation and stray mass; returns the largest |logit| of the support.
  double finish_mass(Index i, const Row& row) {
    const auto columns = scan_.target.row_columns(i);
    const auto weights = scan_.target.row_weights(i);
    const auto q = scan_.source.q[0].row(i).template cast<double>().eval();
    const auto keys = scan_.source.k[0];
    logits_.resize(columns.size());
    double top = row.sum.empty() ? -std::numeric_limits<double>::infinity()
                                 : static_cast<double>(row.sum.max);
    double largest = 0;
    for (std::size_t p = 0; p < columns.size(); ++p) {
      logits_[p] = scan_.source.scale * q.dot(keys.row(columns[p]).template cast<double>());
      top = std::max(top, logits_[p]);
      largest = std::max(largest, std::abs(logits_[p]));
    }
    if (!scan_.mass) return largest;
    const double off = row.sum.empty() ? 0 : std::exp(row.sum.log_sum() - top);
    double on = 0;
    for (double& s : logits_) on += s = std::exp(s - top);
    double difference = 0;
    for (std::size_t p = 0; p < columns.size(); ++p) {
      difference += std::abs(logits_[p] / (on + off) - weights[p]);
    }
    const double stray = on + off > 0 ? off / (on + off) : 0;
    scan_.out.stray[i] = stray;
    scan_.out.tv[i] = (difference + stray) / 2;
    return largest;
  }

  Scan<T> scan_;
  std::vector<Row> rows_;
  std::vector<double> logits_;
};

// The undecided rows once more, in double.
template <class T>
void rescan_in_double(const Scan<T>& scan, const Run& run) {
  std::vector<Index> open;
  for (Index i = 0; i < scan.target.n; ++i) {
    if (scan.out.verdict[static_cast<std::size_t>(i)] == Verdict::undecided) open.push_back(i);
  }
  scan.out.rescanned = static_cast<Index>(open.size());
  if (open.empty()) return;
  const Matrix<double> q = scan.source.q[0].template cast<double>();
  const Matrix<double> k = scan.source.k[0].template cast<double>();
  LogitSource<double> source;
  source.q = {q.data(), 1, q.rows(), q.cols(), q.size(), q.cols()};
  source.k = {k.data(), 1, k.rows(), k.cols(), k.size(), k.cols()};
  source.scale = scan.source.scale;
  source.mask = scan.source.mask;
  source.rows = std::span<const Index>(open);
  const Scan<double> again{scan.target, source,   scan.norms, scan.errors,
                           scan.tolerances, scan.mass, scan.out,   scan.row_max_logit};
  stream_tiles(source, run, [&] { return CertificateFold<double>(again); });
}

}  // namespace

template <class T>
CertificateRows certify_logits(const Target& target, const LogitSource<T>& source,
                               const InputErrors& errors, const Tolerances& tolerances, bool mass,
                               const Run& run) {
  check_arguments(target, source.q.count, source.q.rows, source.k.rows, tolerances);
  CertificateRows out(target.n);
  Vector<double> row_max_logit = Vector<double>::Zero(target.n);
  const Norms norms = detail::bound_norms(source, errors);
  out.q_norm = norms.q_max;
  out.k_norm = norms.k_max;
  const Scan<T> scan{target, source, norms, errors, tolerances, mass, out, row_max_logit};
  stream_tiles(source, run, [&] { return CertificateFold<T>(scan); });
  for (Index i = 0; i < target.n; ++i) {
    out.rounding_bound = std::max(out.rounding_bound, scan.radius(i));
  }
  if constexpr (!std::is_same_v<T, double>) rescan_in_double(scan, run);
  if (target.n > 0) out.max_logit = row_max_logit.maxCoeff();
  return out;
}

template CertificateRows certify_logits(const Target&, const LogitSource<float>&,
                                        const InputErrors&, const Tolerances&, bool, const Run&);
template CertificateRows certify_logits(const Target&, const LogitSource<double>&,
                                        const InputErrors&, const Tolerances&, bool, const Run&);

}  // namespace headfit
