#include "headfit/logits/source.hpp"

#include <string>

namespace headfit {

template <class T>
void LogitSource<T>::validate() const {
  if (q.cols != k.cols) {
    throw InputError("Q and K must have the same head size; got " + std::to_string(q.cols) +
                     " and " + std::to_string(k.cols));
  }
  if (group < 1 || q.count != group * k.count) {
    throw InputError("the heads of K must divide those of Q; got " + std::to_string(k.count) +
                     " and " + std::to_string(q.count));
  }
  const double size = std::abs(scale);
  if (!(size >= std::numeric_limits<T>::min() && size <= std::numeric_limits<T>::max())) {
    throw InputError(
        "scale must be finite, nonzero and a normal number of the arrays' dtype; got " +
        std::to_string(scale));
  }
  if (!(softcap >= 0 && softcap <= std::numeric_limits<T>::max())) {
    throw InputError("softcap must be positive and finite; got " + std::to_string(softcap));
  }
  for (Index h = 0; sinks && h < q.count; ++h) {
    constexpr auto most = static_cast<double>(std::numeric_limits<T>::max());
    if (!(std::abs(sinks[h]) <= most) && sinks[h] != -std::numeric_limits<double>::infinity()) {
      throw InputError("sinks must be finite in the arrays' dtype, or -inf for none; got " +
                       std::to_string(sinks[h]) + " for head " + std::to_string(h));
    }
  }
  for (Index place = 0; rows && place < row_count(); ++place) {
    if (row_at(place) < 0 || row_at(place) >= q.rows) {
      throw InputError("rows must lie in 0 ... " + std::to_string(q.rows - 1) + "; got " +
                       std::to_string(row_at(place)) + " at place " + std::to_string(place));
    }
  }
}

template struct LogitSource<float>;
template struct LogitSource<double>;

}  // namespace headfit
