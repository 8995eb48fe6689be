// Queries and keys in float32, and what a pattern and its tolerances require of their products.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "headfit/logits/source.hpp"
#include "headfit/pattern/support_cursor.hpp"
#include "headfit/pattern/target.hpp"
#include "headfit/simd/packet.hpp"

namespace headfit::learned {

using Pack = simd::Packet<float>;
inline constexpr Index lanes = simd::lanes<float>;

// A matrix whose rows are padded with zeros to whole vectors.
class PaddedRows {
 public:
  PaddedRows(Index n, Index dim)
      : n_(n), dim_(dim), width_(padded(dim)), data_(static_cast<std::size_t>(n * width_), 0.0f) {}

  // Rows are padded to whole vectors, and to multiples of four, since curvatures are summed in
  // strips of four.
  static Index padded(Index dim) {
    const Index unit = std::max<Index>(lanes, 4);
    return (dim + unit - 1) / unit * unit;
  }

  Index rows() const { return n_; }
  Index dim() const { return dim_; }
  Index width() const { return width_; }
  float* row(Index i) { return data_.data() + i * width_; }
  const float* row(Index i) const { return data_.data() + i * width_; }
  Heads<float> heads(const EveryNth& rows = {}) const {
    const Index shown = (n_ - rows.first + rows.step - 1) / rows.step;
    return {row(rows.first), 1, shown, dim_, n_ * width_, rows.step * width_};
  }
  MatrixView<float> matrix() const { return heads()[0]; }
  void clear() { std::fill(data_.begin(), data_.end(), 0.0f); }
  void swap(PaddedRows& other) noexcept { data_.swap(other.data_); }

 private:
  Index n_, dim_, width_;
  std::vector<float> data_;
};

inline float dot(const float* a, const float* b, Index width) {
  Pack sum = simd::pmul(simd::load(a), simd::load(b));
  for (Index f = lanes; f < width; f += lanes) {
    sum = simd::pmadd(simd::load(a + f), simd::load(b + f), sum);
  }
  return simd::predux(sum);
}

// y += g x.
inline void add_scaled(float g, const float* x, float* y, Index width) {
  const Pack factor = simd::fill(g);
  for (Index f = 0; f < width; f += lanes) {
    simd::store(y + f, simd::pmadd(factor, simd::load(x + f), simd::load(y + f)));
  }
}

// The logits on the support of a row. Their distances from log A have the mean `centre`, and
// `spread` is the difference of the largest and the smallest distance. `lowest` and `highest` are
// the smallest and the largest logit.
struct SupportState {
  float centre;
  float lowest;
  float highest;
  float spread;
};

class Requirements {
 public:
  Requirements(const Target& target, const Tolerances& tolerances)
      : target_(target),
        tolerances_(tolerances),
        log_inverse_leak_(static_cast<float>(-std::log(tolerances.leak))),
        hinge_reserve_(static_cast<float>(std::log1p(tolerances.distortion))),
        asked_{log_inverse_leak_, hinge_reserve_},
        checked_(asked_),
        max_logit_(static_cast<float>(tolerances.max_logit)),
        log_smallest_(static_cast<std::size_t>(target.n)) {
    log_weights_.reserve(static_cast<std::size_t>(target.nonzeros()));
    for (Index i = 0; i < target.n; ++i) {
      float smallest = std::numeric_limits<float>::infinity();
      for (const double w : target.row_weights(i)) {
        log_weights_.push_back(static_cast<float>(std::log(w)));
        smallest = std::min(smallest, log_weights_.back());
      }
      log_smallest_[static_cast<std::size_t>(i)] = smallest;
      filled_rows_ += !target.row_columns(i).empty();
      largest_support_ = std::max(largest_support_, support_size(i));
    }
  }

  Index n() const { return target_.n; }
  const Target& target() const { return target_; }
  const Tolerances& tolerances() const { return tolerances_; }
  std::span<const Column> support(Index i) const { return target_.row_columns(i); }
  Index support_size(Index i) const { return target_.offsets[i + 1] - target_.offsets[i]; }
  const float* log_weights(Index i) const { return log_weights_.data() + target_.offsets[i]; }
  Index largest_support() const { return largest_support_; }
  double mean_support() const {
    return static_cast<double>(target_.nonzeros()) /
           static_cast<double>(std::max<Index>(filled_rows_, 1));
  }
  // The limits that rows are checked against. The loss always aims at the tolerances as asked.
  float log_inverse_leak() const { return checked_.log_inverse_leak; }
  float spread_limit() const { return checked_.spread; }
  // Whether scans may look at a part of the columns: not with a mask or a bound on |logit|.
  bool may_skip_columns() const { return target_.mask.is_open() && !is_bounded(); }
  bool is_bounded() const { return tolerances_.limits_logits(); }
  float max_logit() const { return max_logit_; }
  // The loss pushes back logits whose absolute value exceeds this.
  float logit_hinge() const { return max_logit_ - std::min(hinge_reserve_, max_logit_ / 8); }

  // From now on rows are checked against tighter limits: this part of log(1 + distortion) is kept
  // in reserve, and logits off the support must be lower by the same amount. With 0 the limits are
  // as asked.
  void reserve(float part) {
    reserved_ = part;
    checked_.spread = asked_.spread * (1 - part);
    checked_.log_inverse_leak = asked_.log_inverse_leak + asked_.spread * part;
  }

  // The hinge of the loss: logits off the support should stay below it.
  float hinge(Index i, const SupportState& state) const { return hinge(i, state.centre); }
  float hinge(Index i, float centre) const {
    return centre + log_smallest_[static_cast<std::size_t>(i)] - log_inverse_leak_ - hinge_reserve_;
  }

  // Writes the logits of the support to `logits`, unless it is null. The row must not be empty.
  SupportState support_state(Index i, const float* query, const PaddedRows& keys,
                             float* logits) const {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const auto columns = support(i);
    const float* log_weight = log_weights(i);
    float sum = 0, lowest = infinity, highest = -infinity, high = -infinity, low = infinity;
    for (std::size_t a = 0; a < columns.size(); ++a) {
      const float s = dot(query, keys.row(columns[a]), keys.width());
      const float shift = s - log_weight[a];
      if (logits) logits[a] = s;
      sum += shift;
      high = std::max(high, shift);
      low = std::min(low, shift);
      lowest = std::min(lowest, s);
      highest = std::max(highest, s);
    }
    return {sum / static_cast<float>(columns.size()), lowest, highest, high - low};
  }

  float reserved() const { return reserved_; }

 private:
  Target target_;
  Tolerances tolerances_;
  float log_inverse_leak_;
  float hinge_reserve_;
  struct Limits {
    float log_inverse_leak;
    float spread;
  };
  Limits asked_, checked_;
  float reserved_ = 0;
  float max_logit_;
  std::vector<float> log_weights_;
  std::vector<float> log_smallest_;  // of the weights of each row
  Index filled_rows_ = 0;
  Index largest_support_ = 0;
};

}  // namespace headfit::learned
