// What `StatsOut` has of a row of logits, for the folds that take statistics of rows.
#pragma once

#include "headfit/attention/attention.hpp"
#include "headfit/attention/keys_for_share.hpp"
#include "headfit/attention/softmax_row.hpp"

namespace headfit {

// The sum of a row's exponentials as they were stored, the logarithm of the sum of exponentials of
// its logits, and the share of the keys in the whole row, which may have a sink.
struct RowSum {
  double stored = 0;
  double log_keys = -std::numeric_limits<double>::infinity();
  double key_mass = 0;
};

template <class T>
class RowStatistics {
 public:
  RowStatistics(const LogitSource<T>& source, const StatsOut& out)
      : source_(source),
        out_(out),
        for_share_(out.shares.empty() ? 1.0 : std::ranges::max(out.shares)) {}

  // Writes the statistics of a row of logits with this maximum, and replaces the logits by
  // exponentials; the mask may allow nothing in the row. `place` is the row's, over all heads.
  RowSum take(Index head, Index place, T* x, Index padded, T max) {
    Offset* counts = out_.counts + place * static_cast<Index>(out_.shares.size());
    if (max == -std::numeric_limits<T>::infinity()) {
      write(place, 0, 0, {-std::numeric_limits<double>::infinity(), 0});
      std::fill_n(counts, out_.shares.size(), Offset(0));
      std::fill_n(x, padded, T(0));
      return {};
    }
    const auto shift = simd::RowShift<T>::at(max);
    const auto [sum, distances] = entropy_sums(x, padded, shift, max);
    // With e_j = exp(s_j - shift): entropy = log(sum e / e_max) + sum e (max - s) / sum e.
    const double largest = exp_of(max, shift);
    const double relative = sum / largest;
    const double entropy = std::log(relative) + distances / sum;
    const double log_keys = static_cast<double>(max) + std::log(relative);
    const auto whole = SumWithSink::of(log_keys, source_.sink(head));
    write(place, std::max(0.0, entropy), 1 / relative * whole.key_mass, whole);
    if (!out_.shares.empty()) {
      for_share_.start(x, padded, sum, static_cast<T>(largest));
      for (const double share : out_.shares) *counts++ = for_share_.holding(share);
    }
    return {sum, log_keys, whole.key_mass};
  }

 private:
  void write(Index place, double entropy, double max_weight, const SumWithSink& whole) {
    const auto put = [&](double* to, double value) {
      if (to) to[place] = value;
    };
    put(out_.entropy, entropy);
    put(out_.max_weight, max_weight);
    put(out_.log_sum, whole.log_sum);
    put(out_.key_mass, whole.key_mass);
  }

  const LogitSource<T>& source_;
  StatsOut out_;
  KeysForShare<T> for_share_;
};

// Throws an InputError unless all shares lie in (0, 1].
void check_shares(std::span<const double> shares);

}  // namespace headfit
