// The folds of a certificate: one compares logits only, one sums exponentials too, and one takes a bias
// to every logit. All end with the verdict of a row.
#pragma once

#include <bit>

#include "headfit/attention/softmax_row.hpp"
#include "headfit/certify/support.hpp"
#include "headfit/logits/stream.hpp"
#include "headfit/pattern/support_cursor.hpp"

namespace headfit::detail {

// A row holds if every value within the enclosures meets the tolerances, and fails if none does.
inline Verdict judge(const Enclosure& leak, const Enclosure& distortion, const Enclosure& magnitude,
                     const Tolerances& tolerances) {
  const auto fails = [](const Enclosure& x, double limit) { return x.lo > limit; };
  const auto holds = [](const Enclosure& x, double limit) { return x.hi <= limit; };
  if (fails(leak, tolerances.leak) || fails(distortion, tolerances.distortion) ||
      fails(magnitude, tolerances.max_logit)) {
    return Verdict::fails;
  }
  if (holds(leak, tolerances.leak) && holds(distortion, tolerances.distortion) &&
      holds(magnitude, tolerances.max_logit)) {
    return Verdict::holds;
  }
  return Verdict::undecided;
}

// What one scan reads and where it writes. All threads share it, and each row is written by one.
template <class T>
struct Scan {
  const Target& target;
  const LogitSource<T>& source;  // of products: the soft-cap and the bias are left to the path
  const Bias& bias;
  const LogitPath& path;
  const Norms& norms;
  const Tolerances& tolerances;
  const CertifyOptions& options;
  CertificateRows& out;

  // The scale is rounded, then multiplied into q: two roundings more than the dot product's d.
  DotBound bound = DotBound::of<T>(source.q.cols, source.q.cols + 2);

  // By how much scale * q.k as the stream computes it for this row may differ from the exact
  // product.
  double own_radius(Index row) const {
    return bound.radius(source.scale, norms.q[row], norms.k_max);
  }
  NormBounds norm_bounds(Index row) const {
    return {norms.q[row], norms.k_max, error_of(options.errors.q, row), norms.k_error_max};
  }
  // By how much it may differ from a product that the certificate is about, before that is rounded
  // to a format.
  double radius(Index row) const {
    return next_up(own_radius(row) +
                   norm_bounds(row).radius(source.scale, source.q.cols, path.kernel()));
  }
};

// The part that all folds share: what they keep for each row while its tiles go by, and the
// verdict at the end of the row.
template <class T>
class CertificateFold {
 public:
  void begin(const RowBlock& block) {
    rows_.resize(static_cast<std::size_t>(block.count));
    for (Index r = 0; r < block.count; ++r) {
      rows_[static_cast<std::size_t>(r)] = {};
      row(r).support = SupportCursor(scan_.target, scan_.source.row_at(block.first + r));
    }
  }

  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      finish(scan_.source.row_at(block.first + r), row(r));
      checkpoints_.after(scan_.source.q.cols);
    }
  }

 protected:
  explicit CertificateFold(const Scan<T>& scan)
      : scan_(scan), queries_(scan.source.q), keys_(scan.source.k) {}

  struct Row {
    SupportCursor support;
    T largest = -std::numeric_limits<T>::infinity();  // logit off the support
    T smallest = std::numeric_limits<T>::infinity();  // logit of the row
    Index column = -1;  // where the largest is
    OnlineSum<T> sum;  // of exponentials off the support
    // With a bias, in place of largest and smallest: enclosures of the largest logit off the
    // support and of the largest |logit| there.
    Enclosure off{-no_bound, -no_bound}, magnitude{0, 0};

    // Adds the exponentials of logits of which the largest is `most`.
    void add_exponentials(T* x, Index padded, T most) {
      sum.raise(most);
      sum.sum += exp_sum<T, Exponentials::discard>(x, padded, sum.shift);
    }
  };
  Row& row(Index r) { return rows_[static_cast<std::size_t>(r)]; }

  Scan<T> scan_;

 private:
  void finish(Index i, const Row& row) {
    const SupportRow support =
        enclose_support(scan_.target, scan_.path, scan_.bias, queries_, keys_, scan_.norms,
                        scan_.options.errors, i, query_, logits_);
    CertificateRows& out = scan_.out;
    const auto at = static_cast<std::size_t>(i);
    Enclosure leak{0, 0}, largest{-no_bound, -no_bound};  // off the support
    Enclosure magnitude = support.magnitude;
    Overflow overflow = support.overflow;
    if (row.column >= 0) {
      const bool is_biased = scan_.bias.is_set();
      largest = is_biased ? row.off : logit_near(row.largest, i);
      overflow.look(largest, false);
      if (support.weakest >= 0) leak = exp(largest - support.least);
      magnitude = larger(magnitude, is_biased ? row.magnitude : absolute(largest));
      if (!is_biased) magnitude = larger(magnitude, absolute(logit_near(row.smallest, i)));
    }
    if (!scan_.path.kernel().is_exact() && (!scan_.source.mask.is_open() || scan_.bias.is_set())) {
      overflow.possible |= scan_.path.may_overflow(scan_.norm_bounds(i), scan_.norms.bias_max);
    }
    Enclosure distortion = expm1(support.spread);
    const std::size_t supported = scan_.target.row_columns(i).size();
    if (const auto& to = scan_.path.kernel().weights; to && supported > 0) {
      const WeightErrors errors =
          weight_errors(*to, support.least, support.most, largest, static_cast<double>(supported),
                        static_cast<double>(scan_.source.k.rows));
      if (row.column >= 0) leak = errors.quotient(leak);
      distortion = errors.quotient(exp(support.spread)) - Enclosure::exactly(1);
      distortion.lo = std::max(0.0, distortion.lo);
    }
    if (supported <= 1) distortion = {0, 0};
    if (overflow.possible) leak.hi = distortion.hi = no_bound;
    if (overflow.certain) leak.lo = distortion.lo = no_bound;
    // The weights of a softmax sum to 1, so no head meets an empty target row if the mask allows
    // it any key.
    if (support.weakest < 0 && row.column >= 0) leak = Enclosure::exactly(no_bound);
    out.leak[i] = leak.hi;
    out.distortion[i] = distortion.hi;
    out.verdict[at] = judge(leak, distortion, magnitude, scan_.tolerances);
    out.leak_column[at] = row.column;
    out.weakest_column[at] = support.weakest;
    out.highest_column[at] = support.highest;
    out.lowest_column[at] = support.lowest;
    out.largest_logit[i] = magnitude.hi;
    if (scan_.options.mass) finish_mass(i, row);
  }

  // Encloses the largest or the least of the logits that the certificate is about, from the one of
  // those that the scan computed.
  Enclosure logit_near(T computed, Index i) const {
    return scan_.path.logit(static_cast<double>(computed), scan_.own_radius(i),
                            scan_.norm_bounds(i));
  }

  // Total variation and stray mass of the row.
  void finish_mass(Index i, const Row& row) {
    const auto weights = scan_.target.row_weights(i);
    double top = row.sum.empty() ? -std::numeric_limits<double>::infinity()
                                 : static_cast<double>(row.sum.max);
    for (const double s : logits_) top = std::max(top, s);
    if (top == -std::numeric_limits<double>::infinity()) top = 0;
    const double off = row.sum.empty() ? 0 : std::exp(row.sum.log_sum() - top);
    double on = 0;
    for (const double s : logits_) on += std::exp(s - top);
    // A row whose logits are all -inf has weights of zero. A logit that the format rounds to
    // infinity makes the sum NaN, as it does the softmax.
    const double sum = on + off;
    const auto share = [&](double x) { return sum == 0 ? 0 : x / sum; };
    double difference = 0;
    for (std::size_t p = 0; p < logits_.size(); ++p) {
      difference += std::abs(share(std::exp(logits_[p] - top)) - weights[p]);
    }
    const double stray = share(off);
    scan_.out.stray[i] = stray;
    scan_.out.tv[i] = (difference + stray) / 2;
  }

  std::vector<Row> rows_;
  Checkpoints checkpoints_;
  HeadRows<T> queries_, keys_;
  Eigen::RowVectorXd query_;
  std::vector<double> logits_;  // on the support of the row
};

// Compares logits only. The stream hands over those above a limit per row: here the largest logit
// off the support so far.
template <class T>
class CompareFold : public CertificateFold<T> {
 public:
  explicit CompareFold(const Scan<T>& scan) : CertificateFold<T>(scan) {}

  static Index block_rows(const LogitSource<T>& source) { return scan_block(source); }

  void begin(const RowBlock& block) {
    constexpr T infinity = std::numeric_limits<T>::infinity();
    CertificateFold<T>::begin(block);
    const Index padded = round_up(block.count, Blocking<T>::row_group);
    std::fill_n(largest_.ensure(padded), padded, infinity);
    std::fill_n(largest_.data(), block.count, -infinity);
    std::fill_n(lowest_.ensure(padded * simd::lanes<T>), padded * simd::lanes<T>, infinity);
  }

  const T* limits(const RowBlock&) const { return largest_.data(); }
  T* lowest(const RowBlock&) { return lowest_.data(); }

  // Of equal logits the first column is reported.
  void hits(const RowBlock&, Index r, Index col, const T* logits, std::uint32_t bits) {
    auto& row = this->row(r);
    T& largest = largest_.data()[r];
    for (bits = row.support.off_support(bits, col); bits; bits &= bits - 1) {
      const int b = std::countr_zero(bits);
      if (!(logits[b] > largest)) continue;
      largest = logits[b];
      row.column = col + b;
    }
  }

  void end(const RowBlock& block) {
    for (Index r = 0; r < block.count; ++r) {
      this->row(r).largest = largest_.data()[r];
      this->row(r).smallest = simd::predux_min(simd::load(lowest_.data() + r * simd::lanes<T>));
    }
    CertificateFold<T>::end(block);
  }

 private:
  Buffer<T> largest_;
  Buffer<T> lowest_;
};

// Sums exponentials too, for total variation and stray mass.
template <class T>
class MassFold : public CertificateFold<T> {
 public:
  explicit MassFold(const Scan<T>& scan) : CertificateFold<T>(scan) {}

  void tile(const RowBlock&, const Tile<T>& tile) {
    for (Index r = 0; r < tile.count; ++r) {
      auto& row = this->row(r);
      T* x = tile.row(r);
      add(row, x, tile.padded_cols(), [&] { return row.support.hide(x, tile); },
          [&](Index c) { return tile.col + c; });
    }
  }

  void entries(const RowBlock&, Index r, const Entries<T>& entries) {
    auto& row = this->row(r);
    add(row, entries.data, entries.padded(), [&] { return row.support.hide(entries); },
        [&](Index c) { return entries.column(c); });
  }

 private:
  // Takes a part of a row. hide() hides the support in it; x[c] stands in column place(c).
  template <class Hide, class Place>
  void add(typename CertificateFold<T>::Row& row, T* x, Index padded, const Hide& hide,
           const Place& place) {
    auto [least, most] = logit_range(x, padded);
    row.smallest = std::min(row.smallest, least);
    if (hide()) most = row_max(x, padded);
    if (most == -std::numeric_limits<T>::infinity()) return;
    if (most > row.largest) {
      row.largest = most;
      row.column = place(std::find(x, x + padded, most) - x);
    }
    if (!this->scan_.path.is_plain()) most = map_row(x, padded);
    row.add_exponentials(x, padded, most);
  }

  // Makes of the products what the softmax would see, and returns the largest. They are rounded to
  // the significands of the kernel's formats, whatever their exponents.
  T map_row(T* x, Index padded) const {
    const LogitPath& path = this->scan_.path;
    const Kernel& kernel = path.kernel();
    const T scale = static_cast<T>(path.scale()), cap = static_cast<T>(path.softcap());
    if (kernel.product) {
      map(x, padded, [=](T y) { return y / scale; });
      round(x, padded, kernel.product);
      map(x, padded, [=](T y) { return y * scale; });
    }
    round(x, padded, kernel.logits);
    if (cap > 0) {
      map(x, padded, [=](T y) { return y / cap; });
      round(x, padded, kernel.logits);
      map(x, padded, [](T y) { return std::isfinite(y) ? std::tanh(y) : y; });  // -inf: masked
      round(x, padded, kernel.logits);
      map(x, padded, [=](T y) { return y * cap; });
      round(x, padded, kernel.logits);
    }
    return row_max(x, padded);
  }
  template <class F>
  static void map(T* x, Index padded, const F& f) {
    for (Index c = 0; c < padded; ++c) x[c] = f(x[c]);
  }
  static void round(T* x, Index padded, const std::optional<NumberFormat>& to) {
    if (!to || to->digits >= std::numeric_limits<T>::digits) return;
    const T splitter = std::ldexp(T(1), std::numeric_limits<T>::digits - to->digits) + 1;
    map(x, padded, [=](T y) {
      const T high = splitter * y;  // Veltkamp's splitting
      return std::isfinite(high) ? high - (high - y) : y;
    });
  }
};

// With a bias, which differs from logit to logit, every one is enclosed on its own. Sums of
// exponentials are made if they are asked for.
template <class T>
class BiasedFold : public CertificateFold<T> {
 public:
  explicit BiasedFold(const Scan<T>& scan) : CertificateFold<T>(scan) {}

  void tile(const RowBlock& block, const Tile<T>& tile) {
    for (Index r = 0; r < tile.count; ++r) {
      T* x = tile.row(r);
      this->row(r).support.hide(x, tile);
      add(block, r, x, tile.padded_cols(), [&](Index c) { return tile.col + c; });
    }
  }

  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    this->row(r).support.hide(entries);
    add(block, r, entries.data, entries.padded(), [&](Index c) { return entries.column(c); });
  }

 private:
  // Takes a part of a row whose support is hidden; x[c] stands in column place(c).
  template <class Place>
  void add(const RowBlock& block, Index r, T* x, Index padded, const Place& place) {
    constexpr T hidden = -std::numeric_limits<T>::infinity();
    const Scan<T>& scan = this->scan_;
    auto& row = this->row(r);
    const Index i = scan.source.row_at(block.first + r);
    NormBounds norm_bounds = scan.norm_bounds(i);
    for (Index c = 0; c < padded; ++c) {
      if (x[c] == hidden) continue;
      const Index j = place(c);
      const std::optional<double> bias = bias_at(scan.bias, i, j);
      if (*bias == -no_bound) {
        x[c] = hidden;
        continue;
      }
      const double product = static_cast<double>(x[c]);
      norm_bounds.k = scan.norms.k[j];
      norm_bounds.k_error = error_of(scan.options.errors.k, j);
      const double own = scan.bound.radius(scan.source.scale, norm_bounds.q, norm_bounds.k);
      const Enclosure logit = scan.path.logit(product, own, norm_bounds, bias);
      if (row.column < 0 || logit.hi > row.off.hi) row.column = j;
      row.off = larger(row.off, logit);
      row.magnitude = larger(row.magnitude, absolute(logit));
      x[c] = static_cast<T>(scan.path.computed(product, bias));
    }
    if (!scan.options.mass) return;
    const T most = row_max(x, padded);
    if (most != hidden) row.add_exponentials(x, padded, most);
  }
};

}  // namespace headfit::detail
