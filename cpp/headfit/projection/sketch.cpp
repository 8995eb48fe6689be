#include "headfit/projection/sketch.hpp"

#include <algorithm>
#include <bit>
#include <numbers>

#include "headfit/simd/bits.hpp"

namespace headfit {
namespace {

// Coefficients of the power series of sine and cosine of t turns, t S(t^2) and C(t^2), for |t| <=
// 1/8. The terms that are left out are below one unit in the last place.
template <class T>
struct Turn {
  static constexpr int terms = sizeof(T) == 4 ? 6 : 9;
  T sine[terms], cosine[terms];

  constexpr Turn() : sine{}, cosine{} {
    long double term = 1;  // (2 pi)^m / m!
    for (int m = 0; m < 2 * terms; ++m) {
      const long double value = m / 2 % 2 == 0 ? term : -term;
      (m % 2 == 0 ? cosine : sine)[m / 2] = static_cast<T>(value);
      term *= 2 * std::numbers::pi_v<long double> / (m + 1);
    }
  }
};

constexpr int blocks = 64;  // blocks of random words that are taken at a time: 256 normal numbers

// radius * cos and radius * sin of (word + 1/2) / 2^32 turns. The nearest quarter of a turn is
// subtracted in integer arithmetic, without rounding.
template <class T>
void point_on_circle(const std::uint32_t* word, const T* radius, T* x, T* y) {
  static constexpr Turn<T> turn;
  for (int b = 0; b < blocks; ++b) {
    const std::uint32_t w = word[b] + 0x20000000u;
    const std::int32_t part_of_turn = static_cast<std::int32_t>(w & 0x3FFFFFFFu) - 0x20000000;
    const T t = (static_cast<T>(part_of_turn) + T(0.5)) * (T(1) / T(4294967296.0));
    const T t2 = t * t;
    T sine = turn.sine[turn.terms - 1];
    T cosine = turn.cosine[turn.terms - 1];
    for (int m = turn.terms - 2; m >= 0; --m) {
      sine = sine * t2 + turn.sine[m];
      cosine = cosine * t2 + turn.cosine[m];
    }
    sine *= t;
    const bool is_odd = w & 0x40000000u;  // in quarters 1 and 3
    const T c = is_odd ? sine : cosine;
    const T s = is_odd ? cosine : sine;
    x[b] = radius[b] * ((w + 0x40000000u) & 0x80000000u ? -c : c);  // in quarters 1 and 2
    y[b] = radius[b] * (w & 0x80000000u ? -s : s);  // in quarters 2 and 3
  }
}

// log u for u in (0, 1]. With u = 2^e m, m in [sqrt(1/2), sqrt(2)), log m is the polynomial of
// Cephes' logf. It does not check for zeros, infinities or subnormal numbers, which makes it four
// times as fast as a logarithm that does.
float log_of_fraction(float u) {
  static constexpr float p[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  constexpr std::int32_t root_half = 0x3f3504f3;
  constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  const auto bits = std::bit_cast<std::int32_t>(u);
  const std::int32_t exponent = (bits - root_half) >> 23;
  const float f = std::bit_cast<float>(bits - exponent * (1 << 23)) - 1;
  float series = p[0];
  for (int i = 1; i < 9; ++i) series = series * f + p[i];
  const auto e = static_cast<float>(exponent);
  const float f2 = f * f;
  return f + (series * f * f2 + e * ln2_low - 0.5f * f2) + e * ln2_high;
}

void take_logs(Eigen::Array<float, blocks, 1>& fractions) {
  for (float& u : fractions) u = log_of_fraction(u);
}
void take_logs(Eigen::Array<double, blocks, 1>& fractions) { fractions = fractions.log(); }

// Makes four normal numbers from each block of random words: two pairs by the method of Box and
// Muller, for vectors of blocks at a time.
template <class T>
void gaussian_blocks(const Philox& stream, Index j, Index first, T factor, T* out) {
  std::uint32_t words[4][blocks];
  stream.blocks(static_cast<std::uint64_t>(j), static_cast<std::uint64_t>(first), words);
  Eigen::Array<T, blocks, 1> radius, normal[4];
  for (int pair = 0; pair < 4; pair += 2) {
    for (int b = 0; b < blocks; ++b) {
      radius[b] = (static_cast<T>(words[pair][b]) + T(0.5)) * (T(1) / T(4294967296.0));
    }
    take_logs(radius);
    radius = (T(-2) * radius).max(T(0)).sqrt();
    point_on_circle(words[pair + 1], radius.data(), normal[pair].data(), normal[pair + 1].data());
  }
  const T* part[4] = {normal[0].data(), normal[1].data(), normal[2].data(), normal[3].data()};
  for (int b = 0; b < blocks; ++b) {  // write them in the order of the stream
    for (int w = 0; w < 4; ++w) out[4 * b + w] = part[w][b] * factor;
  }
}

// Makes 128 signs from each block of random words.
void sign_bits(const Philox& stream, Index j, Vector<std::uint32_t>& words) {
  for (Index w = 0; w < words.size(); w += 4) {
    const RandomBlock block =
        stream(static_cast<std::uint64_t>(j), static_cast<std::uint64_t>(w / 4));
    std::copy(block.begin(), block.end(), words.data() + w);
  }
}

}  // namespace

template <class T>
SketchRow<T>::SketchRow(Sketch kind, std::uint64_t seed, Index d) : kind_(kind), stream_(seed) {
  constexpr Index part = 4 * blocks;
  row_.resize((d + part - 1) / part * part);
  if (kind == Sketch::rademacher) signs_.resize(sign_words(d));
}

template <class T>
const T* SketchRow<T>::make(Index j, T factor) {
  if (kind_ == Sketch::gaussian) {
    for (Index begin = 0; begin < row_.size(); begin += 4 * blocks) {
      gaussian_blocks<T>(stream_, j, begin / 4, factor, row_.data() + begin);
    }
  } else {
    sign_bits(stream_, j, signs_);
    const auto value = simd::fill<T>(factor);
    for (Index c = 0; c < 32 * signs_.size(); c += simd::lanes<T>) {
      simd::store(row_.data() + c, simd::with_signs(value, signs_[c / 32] >> (c % 32)));
    }
  }
  return row_.data();
}

template <class T>
void fill_sketch(Sketch kind, std::uint64_t seed, Eigen::Ref<Matrix<T>> g, const Run& run) {
  parallel_rows(g.rows(), run, [&] {
    return [&, row = SketchRow<T>(kind, seed, g.cols()),
            checkpoints = Checkpoints()](Index first, Index end) mutable {
      for (Index j = first; j < end; ++j) {
        std::copy_n(row.make(j, T(1)), g.cols(), g.row(j).data());
        checkpoints.after(4 * g.cols());
      }
    };
  });
}

template class SketchRow<float>;
template class SketchRow<double>;
template void fill_sketch<float>(Sketch, std::uint64_t, Eigen::Ref<Matrix<float>>, const Run&);
template void fill_sketch<double>(Sketch, std::uint64_t, Eigen::Ref<Matrix<double>>, const Run&);

}  // namespace headfit
