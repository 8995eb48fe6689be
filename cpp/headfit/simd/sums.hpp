// Sums of many vectors of nonnegative terms whose error does not grow with the number of terms.
#pragma once

#include "headfit/simd/packet.hpp"

#if defined(EIGEN_VECTORIZE_SSE)
#include <immintrin.h>
#endif

namespace headfit {

// to[l] += x[l], in double. The conversion is written out, because compilers would convert one lane
// at a time.
EIGEN_ALWAYS_INLINE void add_wide(double* to, const simd::Packet<float>& x) {
  [[maybe_unused]] const auto add = [to](Index l, const simd::Packet<double>& part) {
    simd::store(to + l, simd::padd(simd::load(to + l), part));
  };
#if defined(EIGEN_VECTORIZE_AVX512)
  add(0, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
  add(8, _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1))));
#elif defined(EIGEN_VECTORIZE_AVX)
  add(0, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
  add(4, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
#elif defined(EIGEN_VECTORIZE_SSE)
  add(0, _mm_cvtps_pd(x));
  add(2, _mm_cvtps_pd(_mm_movehl_ps(x, x)));
#else
  alignas(64) float parts[simd::lanes<float>];
  simd::store(parts, x);
  for (Index l = 0; l < simd::lanes<float>; ++l) to[l] += static_cast<double>(parts[l]);
#endif
}

// A compensated sum of nonnegative terms (Neumaier 1974): the rounding error of each addition is
// added up separately, so that the error does not grow with the number of terms.
class CarefulSum {
 public:
  void add(double x) {
    const double next = sum_ + x;
    carried_ += sum_ >= x ? (sum_ - next) + x : (x - next) + sum_;
    sum_ = next;
  }
  double value() const { return sum_ + carried_; }

 private:
  double sum_ = 0;
  double carried_ = 0;
};

// A sum of vectors with a rounding error far below the precision of T. For float each lane is
// summed in double; for double the sum is compensated.
template <class T>
class LaneSum {
 public:
  EIGEN_ALWAYS_INLINE void add(const simd::Packet<T>& x) {
    if constexpr (sizeof(T) == 8) {
      alignas(64) T parts[simd::lanes<T>];
      simd::store(parts, x);
      for (const T part : parts) careful_.add(part);
    } else {
      add_wide(lanes_.data(), x);
    }
  }
  double value() const { return sizeof(T) == 8 ? careful_.value() : lanes_.sum(); }

 private:
  CarefulSum careful_;
  Eigen::Array<double, static_cast<int>(simd::lanes<T>), 1> lanes_ = decltype(lanes_)::Zero();
};

// Collects a few vectors of terms before they are added to a LaneSum. For float a few terms are
// added in float first; for double every addition is compensated (Knuth's two-sum).
template <class T>
class PacketSum {
 public:
  EIGEN_ALWAYS_INLINE void add(Index place, const simd::Packet<T>& term) {
    auto& sum = sums_[place];
    const auto next = simd::padd(sum, term);
    if constexpr (sizeof(T) == 8) {
      const auto part = simd::psub(next, sum);
      const auto lost = simd::padd(simd::psub(sum, simd::psub(next, part)), simd::psub(term, part));
      carried_ = simd::padd(carried_, lost);
    }
    sum = next;
  }

  EIGEN_ALWAYS_INLINE void flush(LaneSum<T>& total) {
    if constexpr (sizeof(T) == 8) {
      for (const auto& sum : sums_) total.add(sum);
      total.add(carried_);
    } else {
      total.add(simd::padd(simd::padd(sums_[0], sums_[1]), simd::padd(sums_[2], sums_[3])));
    }
    for (auto& sum : sums_) sum = simd::fill<T>(T(0));
    carried_ = simd::fill<T>(T(0));
  }

  // How many vectors may be added between two flushes.
  static constexpr Index vectors = sizeof(T) == 8 ? 64 : 8;

 private:
  simd::Packet<T> zero_ = simd::fill<T>(T(0));
  simd::Packet<T> sums_[4] = {zero_, zero_, zero_, zero_};
  simd::Packet<T> carried_ = zero_;
};

}  // namespace headfit
