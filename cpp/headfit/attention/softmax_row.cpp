#include "headfit/attention/softmax_row.hpp"

#include <numbers>

namespace headfit {
namespace {

// Goes through a row of whole vectors in four independent chains, so that no vector waits for the
// result of the one before: calls part(i, place) for chain i.
template <class T, class Part>
EIGEN_ALWAYS_INLINE void in_four_chains(Index padded, const Part& part) {
  constexpr Index lanes = simd::lanes<T>;
  Index c = 0;
  for (; c + 4 * lanes <= padded; c += 4 * lanes) {
    for (Index i = 0; i < 4; ++i) part(i, c + i * lanes);
  }
  for (Index i = 0; i < 3; ++i) {
    if (c + i * lanes < padded) part(i, c + i * lanes);
  }
}

// With `with_hidden` the least logit is that of the unmasked ones.
template <class T, bool with_hidden>
LogitRange<T> range_of(const T* x, Index padded) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const auto hidden = simd::fill<T>(-infinity);
  const auto none = simd::fill<T>(infinity);
  simd::Packet<T> least[2] = {none, none};
  simd::Packet<T> most[2] = {hidden, hidden};
  in_four_chains<T>(padded, [&](Index i, Index c) {
    const auto s = simd::load(x + c);
    most[i % 2] = simd::pmax(most[i % 2], s);
    const auto kept = with_hidden ? simd::pselect(simd::pcmp_eq(s, hidden), none, s) : s;
    least[i % 2] = simd::pmin(least[i % 2], kept);
  });
  const T smallest = simd::predux_min(simd::pmin(least[0], least[1]));
  // Few tiles have masked logits; only those are gone through a second time.
  if (!with_hidden && smallest == -infinity) return range_of<T, true>(x, padded);
  return {smallest, simd::predux_max(simd::pmax(most[0], most[1]))};
}

// The factor between exponentials that leave out the one shift and those that leave out the other.
template <class T>
double factor_between(const simd::RowShift<T>& from, const simd::RowShift<T>& to) {
  // The two shifts may be represented differently and nearly cancel, hence the long double.
  const long double exponent = static_cast<long double>(from.exponent) - to.exponent;
  const long double subtract = static_cast<long double>(from.subtract) - to.subtract;
  return static_cast<double>(std::exp(subtract + exponent * std::numbers::ln2_v<long double>));
}

}  // namespace

template <class T>
T row_max(const T* x, Index padded) {
  const auto lowest = simd::fill<T>(-std::numeric_limits<T>::infinity());
  simd::Packet<T> best[4] = {lowest, lowest, lowest, lowest};
  in_four_chains<T>(padded,
                    [&](Index i, Index c) { best[i] = simd::pmax(best[i], simd::load(x + c)); });
  return simd::predux_max(simd::pmax(simd::pmax(best[0], best[1]), simd::pmax(best[2], best[3])));
}

template <class T>
LogitRange<T> logit_range(const T* x, Index padded) {
  return range_of<T, false>(x, padded);
}

template <class T>
double exp_of(T x, const simd::RowShift<T>& shift) {
  return static_cast<double>(simd::pfirst(simd::exp_shifted<T>(simd::fill<T>(x), shift)));
}

template <class T, Exponentials what>
double exp_sum(T* x, Index padded, const simd::RowShift<T>& shift) {
  constexpr Index chunk = PacketSum<T>::vectors * simd::lanes<T>;
  const simd::ShiftedExp<T> shifted_exp(shift);
  LaneSum<T> total;
  PacketSum<T> sum;
  for (Index begin = 0; begin < padded; begin += chunk) {
    T* part = x + begin;
    in_four_chains<T>(std::min(chunk, padded - begin), [&](Index i, Index c) {
      const auto e = shifted_exp(simd::load(part + c));
      if constexpr (what == Exponentials::keep) simd::store(part + c, e);
      sum.add(i, e);
    });
    sum.flush(total);
  }
  return total.value();
}

template <class T>
EntropySums entropy_sums(T* x, Index padded, const simd::RowShift<T>& shift, T max) {
  constexpr Index chunk = PacketSum<T>::vectors * simd::lanes<T>;
  const simd::ShiftedExp<T> shifted_exp(shift);
  const auto largest = simd::fill<T>(max);
  const auto farthest = simd::fill<T>(T(1e4));  // where exponentials are 0
  LaneSum<T> exponentials, distances;
  PacketSum<T> of_exponentials, of_distances;
  for (Index begin = 0; begin < padded; begin += chunk) {
    T* part = x + begin;
    in_four_chains<T>(std::min(chunk, padded - begin), [&](Index i, Index c) {
      const auto s = simd::load(part + c);
      const auto e = shifted_exp(s);
      simd::store(part + c, e);
      of_exponentials.add(i, e);
      of_distances.add(i, simd::pmul(e, simd::pmin(simd::psub(largest, s), farthest)));
    });
    of_exponentials.flush(exponentials);
    of_distances.flush(distances);
  }
  return {exponentials.value(), distances.value()};
}

template <class T>
double sink_term(double sink, const simd::RowShift<T>& shift) {
  const long double left_out =
      static_cast<long double>(shift.subtract) + shift.exponent * std::numbers::ln2_v<long double>;
  return static_cast<double>(std::exp(sink - left_out));
}

template <class T>
Inverse<T> to_exponentials(T* x, Index padded, T max, bool has_sink, double sink) {
  const auto shift = simd::RowShift<T>::at(std::max(max, static_cast<T>(sink)));
  const double sum = exp_sum<T, Exponentials::keep>(x, padded, shift);
  return Inverse<T>(has_sink ? sum + sink_term(sink, shift) : sum);
}

SumWithSink SumWithSink::of(double log_keys, double sink) {
  const double above = sink - log_keys;
  if (above == -std::numeric_limits<double>::infinity()) return {log_keys, 1};
  // The exponential of a large difference is infinite, and the share of the keys 0.
  return {std::max(sink, log_keys) + std::log1p(std::exp(-std::abs(above))),
          1 / (1 + std::exp(above))};
}

template <class T>
double OnlineSum<T>::log_sum() const {
  return static_cast<double>(max) + std::log(sum / exp_of(max, shift));
}

template <class T>
double OnlineSum<T>::raised(T new_max) {
  const simd::RowShift<T> next = simd::RowShift<T>::at(new_max);
  const double factor = empty() ? 0 : factor_between(shift, next);
  max = new_max;
  shift = next;
  sum *= factor;
  return factor;
}

template <class T>
double OnlineSum<T>::add_sink(double sink) {
  if (sink == -std::numeric_limits<double>::infinity()) return 1;
  const double factor = raise(static_cast<T>(sink));
  sum += sink_term(sink, shift);
  return factor;
}

template float row_max(const float*, Index);
template LogitRange<float> logit_range(const float*, Index);
template double exp_of(float, const simd::RowShift<float>&);
template double exp_sum<float, Exponentials::discard>(float*, Index, const simd::RowShift<float>&);
template double exp_sum<float, Exponentials::keep>(float*, Index, const simd::RowShift<float>&);
template Inverse<float> to_exponentials(float*, Index, float, bool, double);
template Inverse<double> to_exponentials(double*, Index, double, bool, double);
template double sink_term(double, const simd::RowShift<float>&);
template EntropySums entropy_sums(float*, Index, const simd::RowShift<float>&, float);
template struct OnlineSum<float>;
template double row_max(const double*, Index);
template LogitRange<double> logit_range(const double*, Index);
template double exp_of(double, const simd::RowShift<double>&);
template double exp_sum<double, Exponentials::discard>(double*, Index,
                                                       const simd::RowShift<double>&);
template double exp_sum<double, Exponentials::keep>(double*, Index, const simd::RowShift<double>&);
template double sink_term(double, const simd::RowShift<double>&);
template EntropySums entropy_sums(double*, Index, const simd::RowShift<double>&, double);
template struct OnlineSum<double>;

}  // namespace headfit
