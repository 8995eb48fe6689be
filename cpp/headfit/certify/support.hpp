// The support side of the certificate: the k logits of a row that should be large,
// computed in double and enclosed.
#pragma once

#include "headfit/certify/certificate.hpp"
#include "headfit/certify/rounding.hpp"

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
    const auto matrix = x[0];
    for (Index i = 0; i < x.rows; ++i) out[i] = norm_above(matrix.row(i));
    largest = x.rows > 0 ? out.maxCoeff() : 0;
  };
  all(source.q, norms.q, norms.q_max);
  all(source.k, norms.k, norms.k_max);
  for (const double e : errors.k) norms.k_error_max = std::max(norms.k_error_max, e);
  return norms;
}

// How far a logit moves when q and k move by at most these Euclidean distances.
inline double input_radius(double scale, double q_norm, double k_norm, double q_error,
                           double k_error) {
  return std::abs(scale) * (q_error * k_norm + (q_norm + q_error) * k_error) *
         (1 + 8 * std::numeric_limits<double>::epsilon());
}

struct SupportRow {
  Enclosure least{0, 0};    // smallest logit on the support
  Enclosure spread{0, 0};   // max - min of (logit - log target)
  Index weakest = -1;       // columns where these are reached
  Index highest = -1;
  Index lowest = -1;
};

template <class T>
SupportRow enclose_support(const Target& target, const LogitSource<T>& source, const Norms& norms,
                           const InputErrors& errors, Index i) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  // scale * q.k in double: d roundings of the dot product and one of the scale.
  const DotBound bound = DotBound::of<double>(source.q.cols, source.q.cols + 1);
  const auto q = source.q[0].row(i).template cast<double>().eval();
  const auto keys = source.k[0];
  const auto columns = target.row_columns(i);
  const auto weights = target.row_weights(i);
  SupportRow row;
  row.least = {infinity, infinity};
  Enclosure above{-infinity, -infinity};
  Enclosure below{infinity, infinity};
  double highest = -infinity, lowest = infinity, weakest = infinity;
  for (std::size_t p = 0; p < columns.size(); ++p) {
    const Index j = columns[p];
    const double logit = source.scale * q.dot(keys.row(j).template cast<double>());
    double radius = bound.radius(source.scale, norms.q[i], norms.k[j]);
    if (!errors.q.empty()) {
      radius += input_radius(source.scale, norms.q[i], norms.k[j], errors.q[static_cast<std::size_t>(i)],
                             errors.k[static_cast<std::size_t>(j)]);
      radius = next_up(radius);
    }
    const Enclosure s = Enclosure::around(logit, radius);
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
