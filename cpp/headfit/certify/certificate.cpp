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
  const Reading& reading;
  const Tolerances& tolerances;
  bool mass;
  CertificateRows& out;
  Vector<double>& row_max_logit;  // largest |logit| of each row

  // A bound of the error of every logit that the stream computes for a row.
  double radius(Index row) const {
    // The scale is rounded, then multiplied into q: two roundings beside the dot product's d.
    const DotBound bound = DotBound::of<T>(source.q.cols, source.q.cols + 2);
    const double r = bound.radius(source.scale, norms.q[row], norms.k_max);
    const double given = detail::reading_radius(source.scale, source.q.cols, reading, norms.q[row],
                                                row, norms.k_max, norms.k_error_max);
    return next_up(r + given);
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
      T max = row_max(x, padded);
      if (max == hidden) continue;
      if (max > row.largest) {
        row.largest = max;
        row.column = tile.col + (std::find(x, x + tile.cols, max) - x);
      }
      row.smallest = std::min(row.smallest, row_min_finite(x, padded));
      if (scan_.mass) {
        if (scan_.reading.logits) round_row(x, padded, max);
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

  // Rounds to the significand of the reading's format, as the softmax would see it.
  void round_row(T* x, Index padded, T& max) const {
    constexpr int digits = std::numeric_limits<T>::digits;
    const T splitter = std::ldexp(T(1), digits - scan_.reading.logits->digits) + 1;  // Veltkamp
    for (Index c = 0; c < padded; ++c) {
      const T high = splitter * x[c];
      x[c] = std::isfinite(high) ? high - (high - x[c]) : x[c];
    }
    max = row_max(x, padded);
  }

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
        detail::enclose_support(scan_.target, scan_.source, scan_.norms, scan_.reading, i, logits_);
    CertificateRows& out = scan_.out;
    const auto at = static_cast<std::size_t>(i);
    Enclosure leak{0, 0};
    Enclosure size = support.size;
    if (row.column >= 0) {
      const Enclosure largest = logit_near(row.largest, i);
      if (support.weakest >= 0) leak = exp(largest - support.least);
      size = detail::larger(size, detail::magnitude(largest));
      size = detail::larger(size, detail::magnitude(logit_near(row.smallest, i)));
    }
    Enclosure distortion = expm1(support.spread);
    if (scan_.target.row_columns(i).size() <= 1) distortion = {0, 0};
    out.leak[i] = leak.hi;
    out.distortion[i] = distortion.hi;
    out.verdict[at] = judge(leak, distortion, size, scan_.tolerances);
    out.leak_column[at] = row.column;
    out.weakest_column[at] = support.weakest;
    out.highest_column[at] = support.highest;
    out.lowest_column[at] = support.lowest;
    scan_.row_max_logit[i] = size.hi;
    if (scan_.mass) finish_mass(i, row);
  }

  // Where a logit of the scan lies.
  Enclosure logit_near(T computed, Index i) const {
    return detail::as_read(Enclosure::around(static_cast<double>(computed), scan_.radius(i)),
                           scan_.reading);
  }

  // Total variation and stray mass.
  void finish_mass(Index i, const Row& row) {
    const auto weights = scan_.target.row_weights(i);
    double top = row.sum.empty() ? -std::numeric_limits<double>::infinity()
                                 : static_cast<double>(row.sum.max);
    for (const double s : logits_) top = std::max(top, s);
    const double off = row.sum.empty() ? 0 : std::exp(row.sum.log_sum() - top);
    double on = 0;
    for (const double s : logits_) on += std::exp(s - top);
    double difference = 0;
    for (std::size_t p = 0; p < logits_.size(); ++p) {
      difference += std::abs(std::exp(logits_[p] - top) / (on + off) - weights[p]);
    }
    const double stray = on + off > 0 ? off / (on + off) : 0;
    scan_.out.stray[i] = stray;
    scan_.out.tv[i] = (difference + stray) / 2;
  }

  Scan<T> scan_;
  std::vector<Row> rows_;
  std::vector<double> logits_;  // of a support
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
  const Scan<double> again{scan.target, source,   scan.norms, scan.reading,
                           scan.tolerances, scan.mass, scan.out,   scan.row_max_logit};
  stream_tiles(source, run, [&] { return CertificateFold<double>(again); });
}

}  // namespace

template <class T>
CertificateRows certify_logits(const Target& target, const LogitSource<T>& source,
                               const Reading& reading, const Tolerances& tolerances, bool mass,
                               const Run& run) {
  check_arguments(target, source.q.count, source.q.rows, source.k.rows, tolerances);
  CertificateRows out(target.n);
  Vector<double> row_max_logit = Vector<double>::Zero(target.n);
  const Norms norms = detail::bound_norms(source, reading.errors);
  out.q_norm = norms.q_max;
  out.k_norm = norms.k_max;
  const Scan<T> scan{target, source, norms, reading, tolerances, mass, out, row_max_logit};
  stream_tiles(source, run, [&] { return CertificateFold<T>(scan); });
  for (Index i = 0; i < target.n; ++i) {
    out.rounding_bound = std::max(out.rounding_bound, scan.radius(i));
  }
  if constexpr (!std::is_same_v<T, double>) rescan_in_double(scan, run);
  if (target.n > 0) out.max_logit = row_max_logit.maxCoeff();
  return out;
}

template CertificateRows certify_logits(const Target&, const LogitSource<float>&,
                                        const Reading&, const Tolerances&, bool, const Run&);
template CertificateRows certify_logits(const Target&, const LogitSource<double>&,
                                        const Reading&, const Tolerances&, bool, const Run&);

}  // namespace headfit
