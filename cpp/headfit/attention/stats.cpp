// Statistics of rows: entropy, largest weight, and how many keys hold a share of the mass.
#include <algorithm>
#include <numeric>

#include "headfit/attention/attention.hpp"
#include "headfit/attention/softmax_row.hpp"
#include "headfit/logits/stream.hpp"

namespace headfit {
namespace {

// How many of the largest (unnormalised) weights are needed for a sum of `wanted`. A quickselect:
// each step halves, on average, the number of weights in question. It reorders the weights.
template <class T>
Index fewest_reaching(T* first, T* last, double wanted) {
  Index taken = 0;
  while (last - first > 1) {
    T* middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, std::greater<T>());
    const double upper = std::accumulate(first, middle, 0.0);
    if (upper >= wanted) {
      last = middle;
    } else {
      wanted -= upper;
      taken += middle - first;
      first = middle;
    }
  }
  return taken + (first != last && wanted > 0 ? 1 : 0);
}

template <class T>
class StatsFold : public WholeRows<T> {
 public:
  StatsFold(const LogitSource<T>& source, const StatsOut& out)
      : source_(source), out_(out), rows_(source.row_count()) {}

  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    finish_row(block, r, entries.data, entries.padded());
  }

  void end(const RowBlock& block) {
    if (block.by_entries) return;
    for (Index r = 0; r < block.count; ++r) {
      finish_row(block, r, this->row(r), this->padded(block));
    }
  }

 private:
  void finish_row(const RowBlock& block, Index r, T* x, Index padded) {
    const Index place = block.head * rows_ + block.first + r;
    const T max = row_max(x, padded);
    if (max == -std::numeric_limits<T>::infinity()) {
      write(place, 0, 0, {-std::numeric_limits<double>::infinity(), 0});
      std::fill_n(counts(place), out_.shares.size(), Offset(0));
      return;
    }
    const auto shift = simd::RowShift<T>::at(max);
    const double moment = weighted_distance(x, padded, shift, max);
    const double sum = exp_sum<T, Exponentials::keep>(x, padded, shift);
    // With e_j = exp(s_j - shift): entropy = log(sum e / e_max) - sum e (s - max) / sum e.
    const double relative = sum / exp_of(max, shift);
    const double entropy = std::log(relative) - moment / sum;
    const auto whole =
        SumWithSink::of(static_cast<double>(max) + std::log(relative), source_.sink(block.head));
    write(place, std::max(0.0, entropy), 1 / relative * whole.key_mass, whole);
    if (out_.shares.empty()) return;
    // Rounding may make the wanted sum slightly larger than the sum of all weights. Zero weights
    // are left out, so that they are never counted.
    T* last = std::partition(x, x + padded, [](T weight) { return weight > 0; });
    for (std::size_t s = 0; s < out_.shares.size(); ++s) {
      counts(place)[s] = fewest_reaching(x, last, out_.shares[s] * sum);
    }
  }

  // The sum of exp(s - shift) * (s - max); masked positions count 0.
  static double weighted_distance(const T* x, Index padded, const simd::RowShift<T>& shift, T max) {
    double total = 0;
    constexpr Index lanes = simd::lanes<T>;
    for (Index begin = 0; begin < padded; begin += Blocking<T>::tile_cols) {
      auto sum = simd::fill<T>(T(0));
      for (Index c = begin; c < std::min(begin + Blocking<T>::tile_cols, padded); c += lanes) {
        const auto s = simd::load(x + c);
        const auto below = simd::pmax(simd::psub(s, simd::fill<T>(max)), simd::fill<T>(T(-1e4)));
        sum = simd::pmadd(simd::exp_shifted<T>(s, shift), below, sum);
      }
      total += static_cast<double>(simd::predux(sum));
    }
    return total;
  }

  void write(Index place, double entropy, double max_weight, const SumWithSink& whole) {
    out_.entropy[place] = entropy;
    out_.max_weight[place] = max_weight;
    out_.log_sum[place] = whole.log_sum;
    if (out_.key_mass) out_.key_mass[place] = whole.key_mass;
  }
  Offset* counts(Index place) {
    return out_.counts + place * static_cast<Index>(out_.shares.size());
  }

  const LogitSource<T>& source_;
  StatsOut out_;
  Index rows_;
};

}  // namespace

template <class T>
void attention_stats(const LogitSource<T>& source, const StatsOut& out, const Run& run) {
  for (const double share : out.shares) {
    if (!(share > 0 && share <= 1)) {
      throw InputError("shares must lie in (0, 1]; got " + std::to_string(share));
    }
  }
  stream_tiles(source, run, [&] { return StatsFold<T>(source, out); });
}

template void attention_stats(const LogitSource<float>&, const StatsOut&, const Run&);
template void attention_stats(const LogitSource<double>&, const StatsOut&, const Run&);

}  // namespace headfit
