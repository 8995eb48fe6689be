// The support side of the certificate: the few logits of a row that should be large, computed in
// double, each with an interval that is proved to contain it.
#pragma once

#include "headfit/base/checkpoint.hpp"
#include "headfit/certify/certificate.hpp"
#include "headfit/certify/rounding.hpp"
#include "headfit/logits/pack.hpp"

namespace headfit::detail {

// The same queries or keys, widened to double as their rows are read.
template <class T>
Heads<double> in_double(const Heads<T>& x) {
  return {x.data, x.count, x.rows, x.cols, x.head_stride, x.row_stride};
}

// Upper bounds of the norms of all queries and keys, and of the errors of the keys.
struct Norms {
  Vector<double> q;
  Vector<double> k;
  double q_max = 0;
  double k_max = 0;
  double k_error_max = 0;
  double bias_max = 0;  // the largest finite |bias|, for kernels that may overflow
};

// The bias of a position; missing where there is none at all.
inline std::optional<double> bias_at(const Bias& bias, Index row, Index col) {
  if (!bias.is_set()) return {};
  const double value = bias.at(row, col);
  if (!(value < no_bound)) {
    throw_nonfinite("bias (-inf masks, other values)", 0, 1, row, col, value);
  }
  return value;
}

// The largest finite |bias| of an n x n head; 0 where there is none.
inline double largest_bias(const Bias& bias, Index n) {
  double most = 0;
  Checkpoints checkpoints;
  for (Index i = 0; bias.is_set() && i < n; ++i) {
    checkpoints.after(n);
    for (Index j = 0; j < n; ++j) {
      const double magnitude = std::abs(bias.at(i, j));
      if (magnitude < no_bound) most = std::max(most, magnitude);
    }
  }
  return most;
}

// The error of a row of Q or of K; 0 where there are none.
inline double error_of(std::span<const double> errors, Index row) {
  return errors.empty() ? 0 : errors[static_cast<std::size_t>(row)];
}

// A bound of the largest norm of rows that may differ from the stored ones by their errors.
inline double largest_with_errors(const Vector<double>& norms, std::span<const double> errors) {
  double most = 0;
  for (Index i = 0; i < norms.size(); ++i) {
    const double error = error_of(errors, i);
    most = std::max(most, error > 0 ? next_up(norms[i] + error) : norms[i]);
  }
  return most;
}

template <class T>
Norms bound_norms(const LogitSource<T>& source, const InputErrors& errors) {
  Norms norms;
  const auto all = [](const Heads<T>& x, Vector<double>& out, double& largest) {
    out.resize(x.rows);
    HeadRows<T> rows(x);
    Checkpoints checkpoints;
    for (Index i = 0; i < x.rows; ++i) {
      out[i] = norm_above(rows.row(0, i));
      checkpoints.after(x.cols);
    }
    largest = x.rows > 0 ? out.maxCoeff() : 0;
  };
  all(source.q, norms.q, norms.q_max);
  all(source.k, norms.k, norms.k_max);
  for (const double e : errors.k) norms.k_error_max = std::max(norms.k_error_max, e);
  return norms;
}

// The enclosure of the absolute value.
inline Enclosure absolute(const Enclosure& x) {
  if (x.lo >= 0) return x;
  if (x.hi <= 0) return {-x.hi, -x.lo};
  return {0, std::max(-x.lo, x.hi)};
}
// The enclosure of the larger of two values.
inline Enclosure larger(const Enclosure& a, const Enclosure& b) {
  return {std::max(a.lo, b.lo), std::max(a.hi, b.hi)};
}

// Whether rounding to a format may leave, or surely leaves, a row without a usable softmax: a logit
// that is rounded to +inf makes it NaN, one on the support that is rounded to -inf has weight 0.
struct Overflow {
  bool possible = false;
  bool certain = false;

  void look(const Enclosure& logit, bool on_support) {
    possible |= !(logit.hi < no_bound) || (on_support && !(logit.lo > -no_bound));
    certain |= logit.lo == no_bound || (on_support && logit.hi == -no_bound);
  }
};

struct SupportRow {
  Enclosure least{0, 0};    // the smallest logit on the support
  Enclosure most{0, 0};     // the largest
  Enclosure spread{0, 0};   // max - min of (logit - log target)
  Enclosure magnitude{0, 0};  // the largest |logit|
  Overflow overflow;
  Index weakest = -1;       // the column of the smallest logit
  Index highest = -1;       // the column of the largest (logit - log target)
  Index lowest = -1;        // the column of the smallest
};

// Encloses the logits on the support of row i. `q` is a buffer for the query times the scale;
// `logits` receives the logits as the kernel computes them. The order of multiplication is that of
// the stream: scale times query, then times the key.
template <class T>
SupportRow enclose_support(const Target& target, const LogitPath& path, const Bias& bias,
                           HeadRows<T>& queries, HeadRows<T>& keys, const Norms& norms,
                           const InputErrors& errors, Index i, Eigen::RowVectorXd& q,
                           std::vector<double>& logits) {
  // (scale * q).k in double: d roundings of the dot product and one of the scale.
  const Index depth = queries.heads().cols;
  const DotBound bound = DotBound::of<double>(depth, depth + 1);
  const double scale = path.scale(), q_error = error_of(errors.q, i);
  q = scale * queries.row(0, i).template cast<double>();
  const auto columns = target.row_columns(i);
  const auto weights = target.row_weights(i);
  SupportRow row;
  logits.clear();
  row.least = {no_bound, no_bound};
  row.most = {-no_bound, -no_bound};
  Enclosure above{-no_bound, -no_bound};
  Enclosure below{no_bound, no_bound};
  double highest = -no_bound, lowest = no_bound, weakest = no_bound;
  Checkpoints checkpoints;
  for (std::size_t p = 0; p < columns.size(); ++p) {
    const Index j = columns[p];
    checkpoints.after(depth);
    const double logit = q.dot(keys.row(0, j).template cast<double>());
    if (!std::isfinite(logit)) {
      throw_nonfinite("the logits scale * Q K^T", 0, 1, i, j, logit);
    }
    const std::optional<double> added = bias_at(bias, i, j);
    const NormBounds norm_bounds{norms.q[i], norms.k[j], q_error, error_of(errors.k, j)};
    const Enclosure s =
        path.logit(logit, bound.radius(scale, norms.q[i], norms.k[j]), norm_bounds, added);
    row.magnitude = larger(row.magnitude, absolute(s));
    row.overflow.look(s, true);
    logits.push_back(path.computed(logit, added));
    const Enclosure log_weight = log(weights[p]);
    const Enclosure excess = s - log_weight;
    row.least = {std::min(row.least.lo, s.lo), std::min(row.least.hi, s.hi)};
    row.most = larger(row.most, s);
    above = {std::max(above.lo, excess.lo), std::max(above.hi, excess.hi)};
    below = {std::min(below.lo, excess.lo), std::min(below.hi, excess.hi)};
    if (logits.back() < weakest || row.weakest < 0) weakest = logits.back(), row.weakest = j;
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
