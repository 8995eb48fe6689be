// Bounds of the mass that selected keys have in a row of attention.
//
// With w_j the exponential of the exact logit of key j, z that of a sink (or 0), and B the selected
// keys, the mass is w(B) / (w(B) + w(rest) + z): it grows with each w_j in B and falls with the others.
// B holds all sure keys, and `open` of the possible ones. So it is at least
//   lo(L) / (lo(L) + hi(rest of L) + hi(z)),
// with L the sure keys and the lightest possible ones, as many as are open, and at most
//   hi(H) / (hi(H) + lo(rest of H) + lo(z)),
// with H the sure keys and the heaviest possible ones. Light and heavy by computed weights v: every exact
// weight is between v_j / f and v_j f, with one f for the row. For every B therefore
// w(B) >= v(B) / f >= v(L) / f and w(rest of B) <= f v(rest of B) <= f v(rest of L), and so for H.
//
// Where a score may overflow, a kernel may make NaN of it, and select who knows what and how many:
// L is then the sure keys alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "headfit/certify/rounding.hpp"
#include "headfit/certify/selected_keys.hpp"

namespace headfit::detail {

// The exponentials exp(x_j - shift) of the computed logits of a row, added up.
struct WeightSums {
  struct Parts {
    double chosen = 0, rest = 0;
  };
  Parts least, most;  // with the lightest and with the heaviest possible keys chosen
  Index count = 0;  // of all weights
  bool has_rest = false;  // whether some key is not sure
};

// Each thread has an object of its own.
class KeptMass {
 public:
  // Adds up the weights of a row; x[c] is the logit of the key with choice[c], if that is not hidden.
  // map(x) is the logit in double, and `shift` the largest of them.
  template <class T, class Map>
  WeightSums sums(const T* x, const Choice* choice, Index count, const ChoiceCounts& counts,
                  double shift, const Map& map) {
    WeightSums sums;
    double sure = 0, out = 0;
    possible_.clear();
    for (Index c = 0; c < count; ++c) {
      if (choice[c] == Choice::hidden) continue;
      ++sums.count;
      const double weight = std::exp(map(x[c]) - shift);
      if (choice[c] == Choice::sure) {
        sure += weight;
      } else if (choice[c] == Choice::out) {
        out += weight;
      } else {
        possible_.push_back(weight);
      }
    }
    sums.has_rest = counts.sure < sums.count;
    sums.least = divided(sure, out, counts.may_overflow ? 0 : counts.open(), std::less<>());
    sums.most = divided(sure, out, counts.open(), std::greater<>());
    return sums;
  }

 private:
  // The first `open` of the possible keys in an order are chosen too.
  template <class Before>
  WeightSums::Parts divided(double sure, double out, Index open, const Before& before) {
    WeightSums::Parts parts{sure, out};
    const auto end = possible_.begin() + open;
    std::nth_element(possible_.begin(), end, possible_.end(), before);
    for (auto p = possible_.begin(); p != end; ++p) parts.chosen += *p;
    for (auto p = end; p != possible_.end(); ++p) parts.rest += *p;
    return parts;
  }

  std::vector<double> possible_;
};

// Encloses a sum of `count` numbers exp(x_j - shift) that was computed in double in any order, with x_j
// at most the shift, or above it by roundings. The difference is rounded, which changes an exponential by a factor of at most exp(1000 u)
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
  const double rest = sums.has_rest ? high(sums.least.rest) : 0;
  return {share_below(std::max(0.0, low(sums.least.chosen)), next_up(rest + sink.hi)),
          share_above(high(sums.most.chosen),
                      std::max(0.0, next_down(low(sums.most.rest) + sink.lo)))};
}

}  // namespace headfit::detail
