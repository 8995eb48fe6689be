// Bounds of the mass that selected keys have in a row of attention.
//
// With w_j the exponential of the exact logit of key j, z that of a sink (or 0), and B the selected
// keys, the mass is w(B) / (w(B) + w(rest) + z): it grows with each w_j in B and falls with the others.
// B holds all sure keys, and `open` of the possible ones. So it is at least
//   lo(sure) / (lo(sure) + hi(rest) + hi(z)),
// and, since moving weight from the rest to B makes it larger, at most
//   hi(B') / (hi(B') + lo(rest') + lo(z)),
// with B' the sure keys and the heaviest possible ones, as many as are open. Heaviest by computed
// weights: every exact weight is between 1/f and f times the computed one for one f of the row, so that
// hi(B) <= hi(B') and lo(rest) >= lo(rest') for every B.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "headfit/certify/rounding.hpp"
#include "headfit/certify/selected_keys.hpp"

namespace headfit::detail {

// The exponentials exp(x_j - shift) of the computed logits of a row, added up by choice.
struct WeightSums {
  double sure = 0, out = 0;
  double heavy = 0;  // of the heaviest possible keys, as many as are open
  double light = 0;  // of the other possible ones
  Index count = 0;  // of all weights
  bool has_rest = false;  // whether some key is not sure
};

// Each thread has an object of its own.
class KeptMass {
 public:
  // Adds up the weights of a row; x[c] is the logit of the key with choice[c], if that is not hidden.
  // map(x) is the logit in double, and at most `shift`.
  template <class T, class Map>
  WeightSums sums(const T* x, const Choice* choice, Index count, Index open, double shift,
                  const Map& map) {
    WeightSums sums;
    possible_.clear();
    for (Index c = 0; c < count; ++c) {
      if (choice[c] == Choice::hidden) continue;
      ++sums.count;
      const double weight = std::exp(map(x[c]) - shift);
      if (choice[c] == Choice::sure) {
        sums.sure += weight;
      } else if (choice[c] == Choice::out) {
        sums.out += weight;
      } else {
        possible_.push_back(weight);
      }
      sums.has_rest |= choice[c] != Choice::sure;
    }
    const auto heavy = possible_.begin() + std::min<Index>(open, std::ssize(possible_));
    std::nth_element(possible_.begin(), heavy, possible_.end(), std::greater<>());
    for (auto p = possible_.begin(); p != heavy; ++p) sums.heavy += *p;
    for (auto p = heavy; p != possible_.end(); ++p) sums.light += *p;
    return sums;
  }

 private:
  std::vector<double> possible_;
};

// Encloses a sum of `count` numbers exp(x_j - shift), x_j - shift <= 0, that was computed in double in
// any order. The difference is rounded, which changes an exponential by a factor of at most exp(1000 u)
// < 1 + 2^-43 where it is at least -1000; below that both the exponential and what is computed are less
// than the least double. The C library's exp is wrong by 4 units in the last place at most
// (rounding.hpp), subnormal results by a few times the least number, and the sum by gamma_count.
inline Enclosure sum_of_exponentials(double sum, Index count) {
  if (count == 0) return {0, 0};
  const double n = static_cast<double>(count);
  const double relative = 0x1p-41 + n * std::numeric_limits<double>::epsilon();
  const double lost = 16 * n * std::numeric_limits<double>::denorm_min();
  return {std::max(0.0, next_down(next_down(sum * (1 - relative)) - lost)),
          next_up(next_up(sum * (1 + relative)) + lost)};
}

// a / (a + b) for a, b >= 0, from below and from above. An end that is infinite gives no bound.
inline double share_below(double a, double b) {
  const double share = next_down(a / next_up(a + b));
  return share > 0 ? share : 0;  // also where it is NaN
}
inline double share_above(double a, double b) {
  const double share = next_up(a / next_down(a + b));
  return share < 1 ? share : 1;
}

// Encloses the kept mass of a row. `radius` bounds by how much an exact logit differs from the one
// that the weights were computed from, and `sink` encloses exp(sink - shift), 0 for none.
inline Enclosure kept_mass(const WeightSums& sums, double radius, const Enclosure& sink) {
  if (!sums.has_rest && sink.hi == 0) return {1, 1};  // all that the row attends to
  // exp(-radius) and exp(radius), by which all weights may change.
  const Enclosure factor{exp(Enclosure::exactly(-radius)).lo, exp(Enclosure::exactly(radius)).hi};
  const auto low = [&](double computed) {
    return next_down(sum_of_exponentials(computed, sums.count).lo * factor.lo);
  };
  const auto high = [&](double computed) {
    return next_up(sum_of_exponentials(computed, sums.count).hi * factor.hi);
  };
  const double rest = sums.has_rest ? high(sums.out + sums.heavy + sums.light) : 0;
  return {share_below(std::max(0.0, low(sums.sure)), next_up(rest + sink.hi)),
          share_above(high(sums.sure + sums.heavy),
                      std::max(0.0, next_down(low(sums.out + sums.light) + sink.lo)))};
}

}  // namespace headfit::detail
