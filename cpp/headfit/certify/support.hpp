// The support side of the certificate: the k logits of a row that should be large,
// computed in double and enclosed.
#pragma once

#include "headfit/base/checkpoint.hpp"
#include "headfit/certify/certificate.hpp"
#include "headfit/certify/rounding.hpp"
#include "headfit/logits/pack.hpp"

namespace headfit::detail {

// Bounds of norms and input errors that every row needs.
struct Norms {
  Vector<double> q;
  Vector<double> k;
  double q_max = 0;
  double k_max = 0;
  double k_error_max = 0;
};

template <class T>
Norms bound_norms(const LogitSource<T>& source, const InputErrors& errors) {
  Norms norms;
  const auto all = [](const Heads<T>& x, Vector<double>& out, double& largest) {
    out.resize(x.rows);
    HeadRows<T> rows(x);
    Checkpoints pace;
    for (Index i = 0; i < x.rows; ++i) {
      out[i] = norm_above(rows.row(0, i));
      pace.after(x.cols);
    }
    largest = x.rows > 0 ? out.maxCoeff() : 0;
  };
  all(source.q, norms.q, norms.q_max);
  all(source.k, norms.k, norms.k_max);
  for (const double e : errors.k) norms.k_error_max = std::max(norms.k_error_max, e);
  return norms;
}

// By how much a logit of the reading may differ from the exact product of Q and K, before it
// is rounded to a format: what q and k move by, and the accumulation in float32.
inline double reading_radius(double scale, Index depth, const Reading& reading, double q_norm,
                             Index row, double k_norm, double k_error) {
  const double size = std::abs(scale);
  const double q_error =
      reading.errors.q.empty() ? 0 : reading.errors.q[static_cast<std::size_t>(row)];
  double radius = 0;
  if (q_error > 0 || k_error > 0) {
    radius = product_above(size, q_error, k_norm) + product_above(size, q_norm + q_error, k_error);
  }
  if (reading.float32_accumulation) {
    radius += float32_kernels_radius(scale, depth, next_up(q_norm + q_error),
                                     next_up(k_norm + k_error));
  }
  return radius * (1 + 8 * std::numeric_limits<double>::epsilon());
}

// Rounding to a format is monotone: it maps an enclosure to an enclosure.
inline Enclosure as_read(const Enclosure& x, const Reading& reading) {
  if (!reading.logits) return x;
  return {reading.logits->rounded(x.lo), reading.logits->rounded(x.hi)};
}

inline Enclosure magnitude(const Enclosure& x) {
  if (x.lo >= 0) return x;
  if (x.hi <= 0) return {-x.hi, -x.lo};
  return {0, std::max(-x.lo, x.hi)};
}
inline Enclosure larger(const Enclosure& a, const Enclosure& b) {
  return {std::max(a.lo, b.lo), std::max(a.hi, b.hi)};
}

// Whether a row has a softmax at all: a logit that the reading rounds to +inf makes it NaN, and
// one on the support that is rounded to -inf has no weight.
struct Overflow {
  bool possible = false;
  bool certain = false;

  void look(const Enclosure& logit, bool on_support) {
    possible |= !(logit.hi < no_bound) || (on_support && !(logit.lo > -no_bound));
    certain |= logit.lo == no_bound || (on_support && logit.hi == -no_bound);
  }
};

struct SupportRow {
  Enclosure least{0, 0};    // smallest logit on the support
  Enclosure spread{0, 0};   // max - min of (logit - log target)
  Enclosure size{0, 0};     // largest |logit|
  Overflow overflow;
  Index weakest = -1;       // columns where these are reached
  Index highest = -1;
  Index lowest = -1;
};

// `q` takes the row's query times the scale, `logits` the logits of the support as computed,
// rounded if the reading says so. They are multiplied as the stream multiplies: the scale first,
// then the key.
template <class T>
SupportRow enclose_support(const Target& target, double scale, HeadRows<T>& queries,
                           HeadRows<T>& keys, const Norms& norms, const Reading& reading, Index i,
                           Eigen::RowVectorXd& q, std::vector<double>& logits) {
  // (scale * q).k in double: d roundings of the dot product and one of the scale.
  const Index depth = queries.heads().cols;
  const DotBound bound = DotBound::of<double>(depth, depth + 1);
  q = scale * queries.row(0, i).template cast<double>();
  const auto columns = target.row_columns(i);
  const auto weights = target.row_weights(i);
  SupportRow row;
  logits.clear();
  row.least = {no_bound, no_bound};
  Enclosure above{-no_bound, -no_bound};
  Enclosure below{no_bound, no_bound};
  double highest = -no_bound, lowest = no_bound, weakest = no_bound;
  Checkpoints pace;
  for (std::size_t p = 0; p < columns.size(); ++p) {
    const Index j = columns[p];
    pace.after(depth);
    const double logit = q.dot(keys.row(0, j).template cast<double>());
    if (!std::isfinite(logit)) {
      throw_nonfinite("the logits scale * Q K^T", 0, 1, i, j, logit);
    }
    const double k_error =
        reading.errors.k.empty() ? 0 : reading.errors.k[static_cast<std::size_t>(j)];
    const double radius =
        next_up(bound.radius(scale, norms.q[i], norms.k[j]) +
                reading_radius(scale, depth, reading, norms.q[i], i, norms.k[j], k_error));
    const Enclosure s = as_read(Enclosure::around(logit, radius), reading);
    row.size = larger(row.size, magnitude(s));
    row.overflow.look(s, true);
    logits.push_back(reading.logits ? reading.logits->rounded(logit) : logit);
    const Enclosure log_weight = log(weights[p]);
    const Enclosure excess = s - log_weight;
    row.least = {std::min(row.least.lo, s.lo), std::min(row.least.hi, s.hi)};
    above = {std::max(above.lo, excess.lo), std::max(above.hi, excess.hi)};
    below = {std::min(below.lo, excess.lo), std::min(below.hi, excess.hi)};
    if (logit < weakest) weakest = logit, row.weakest = j;
    if (excess.lo > highest) highest = excess.lo, row.highest = j;
    if (excess.lo < lowest) lowest = excess.lo, row.lowest = j;
  }
  if (columns.size() > 1) {
    row.spread = above - below;
    row.spread.lo = std::max(0.0, row.spread.lo);
  }
  return row;
}

}  // namespace headfit::detail
