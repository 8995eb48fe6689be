#include "headfit/logits/heads.hpp"

namespace headfit {
namespace {

template <class T, class S>
void copy_as(const S* from, Index count, T* to) {
  const Eigen::Map<const Eigen::Array<S, Eigen::Dynamic, 1>> in(from, count);
  Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>> out(to, count);
  if constexpr (has_16_bits<S>) {
    out = in.template cast<float>().template cast<T>();
  } else {
    out = in.template cast<T>();
  }
}

}  // namespace

template <class T>
void Rotary<T>::rotate(Index row, T* x, Index cols, T sign) const {
  const Index pairs = cols / 2;
  const Index step = halves ? 1 : 2;
  const Index partner = halves ? pairs : 1;
  const T* cosines = table + (first + row) * cols;
  const T* sines = cosines + pairs;
  for (Index p = 0; p < pairs; ++p) {
    T& a = x[p * step];
    T& b = x[p * step + partner];
    const T sine = sign * sines[p];
    const T turned = a * cosines[p] - b * sine;
    b = a * sine + b * cosines[p];
    a = turned;
  }
}

template <class T>
RowView<T> HeadRows<T>::converted(Index at, Index i) {
  T* out = row_.ensure(heads_.cols);
  std::visit([&](const auto* stored) { copy_as<T>(stored + at, heads_.cols, out); }, heads_.data);
  if (heads_.rotary.table) heads_.rotary.turn(i, out, heads_.cols);
  return {out, heads_.cols};
}

template struct Rotary<float>;
template struct Rotary<double>;
template class HeadRows<float>;
template class HeadRows<double>;

}  // namespace headfit
