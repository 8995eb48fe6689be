// What a pattern asks of the logits, in float32, and how a row stands to it.
#pragma once

#include <cmath>

#include "headfit/learned/vectors.hpp"
#include "headfit/pattern/target.hpp"

namespace headfit::learned {

// Where a row's support logits lie: their distance from log A is `centre` on average and
// ranges over `spread`; `lowest` is the smallest logit.
struct SupportState {
  float centre;
  float lowest;
  float spread;
};

class Wanted {
 public:
  Wanted(const Target& target, double leak, double distortion)
      : target_(target),
        log_inverse_leak_(static_cast<float>(-std::log(leak))),
        spread_limit_(static_cast<float>(std::log1p(distortion))),
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
  std::span<const Column> support(Index i) const { return target_.row_columns(i); }
  Index support_size(Index i) const { return target_.offsets[i + 1] - target_.offsets[i]; }
  const float* log_weights(Index i) const { return log_weights_.data() + target_.offsets[i]; }
  Index largest_support() const { return largest_support_; }
  double mean_support() const {
    return static_cast<double>(target_.nonzeros()) /
           static_cast<double>(std::max<Index>(filled_rows_, 1));
  }
  float log_inverse_leak() const { return log_inverse_leak_; }
  float spread_limit() const { return spread_limit_; }

  // Logits elsewhere should stay below this: the hinge of the loss.
  float hinge(Index i, const SupportState& state) const {
    return state.centre + log_smallest_[static_cast<std::size_t>(i)] - log_inverse_leak_ -
           spread_limit_;
  }

  // `logits` takes the support's logits, unless it is null. The row must not be empty.
  SupportState support_state(Index i, const float* query, const PaddedRows& keys,
                             float* logits) const {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const auto columns = support(i);
    const float* log_weight = log_weights(i);
    float sum = 0, lowest = infinity, high = -infinity, low = infinity;
    for (std::size_t a = 0; a < columns.size(); ++a) {
      const float s = dot(query, keys.row(columns[a]), keys.width());
      const float shift = s - log_weight[a];
      if (logits) logits[a] = s;
      sum += shift;
      high = std::max(high, shift);
      low = std::min(low, shift);
      lowest = std::min(lowest, s);
    }
    return {sum / static_cast<float>(columns.size()), lowest, high - low};
  }

 private:
  Target target_;
  float log_inverse_leak_;
  float spread_limit_;
  std::vector<float> log_weights_;
  std::vector<float> log_smallest_;  // of each row's weights
  Index filled_rows_ = 0;
  Index largest_support_ = 0;
};

}  // namespace headfit::learned
