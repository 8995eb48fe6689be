// The two products of a block of rows with features of the keys. Feature f of key c is stored at
// features[f * stride + c]. A general matrix product would be slow for so few features. Where a row
// has few entries, the features of a key lie side by side instead.
#pragma once

#include "headfit/logits/microkernel.hpp"

namespace headfit::descent {

// The number of features, padded with zeros to a multiple of four.
inline Index feature_count(Index count) { return (count + 3) / 4 * 4; }
// The number of entries in the lower triangle of a dim x dim matrix.
inline Index triangle(Index dim) { return dim * (dim + 1) / 2; }

namespace detail {
// Columns at a time, so that a few rows and features stay in cache.
inline constexpr Index strip = 1024;
}  // namespace detail

// out(r, f) = sum over c of weights(r, c) features(f, c).
template <class T>
void gather(const T* weights, Index w_stride, Index rows, const T* features, Index f_stride,
            Index count, Index cols, T* out, Index out_stride) {
  constexpr Index lanes = simd::lanes<T>;
  constexpr int at_once = Blocking<T>::many_registers ? 4 : 2;
  for (Index r = 0; r < rows; ++r) std::fill_n(out + r * out_stride, count, T(0));
  for (Index begin = 0; begin < cols; begin += detail::strip) {
    const Index end = std::min(begin + detail::strip, cols);
    for (Index r0 = 0; r0 < rows; r0 += at_once) {
      const T* w[at_once];
      for (int r = 0; r < at_once; ++r) w[r] = weights + std::min(r0 + r, rows - 1) * w_stride;
      for (Index f = 0; f < count; f += 4) {
        const T* x = features + f * f_stride;
        simd::Packet<T> sum[at_once][4];
        for (auto& row : sum) std::fill(row, row + 4, simd::fill<T>(T(0)));
        for (Index c = begin; c < end; c += lanes) {
          simd::Packet<T> v[4];
          for (int g = 0; g < 4; ++g) v[g] = simd::load(x + g * f_stride + c);
          for (int r = 0; r < at_once; ++r) {
            const auto weight = simd::load(w[r] + c);
            for (int g = 0; g < 4; ++g) sum[r][g] = simd::pmadd(weight, v[g], sum[r][g]);
          }
        }
        for (Index r = 0; r < std::min<Index>(at_once, rows - r0); ++r) {
          for (int g = 0; g < 4; ++g) out[(r0 + r) * out_stride + f + g] += simd::predux(sum[r][g]);
        }
      }
    }
  }
}

// out(f, c) += sum over r of weights(r, c) features(r, f). Here the features are stored row by row.
template <class T>
void spread(const T* weights, Index w_stride, Index rows, const T* features, Index f_stride,
            Index count, Index cols, T* out, Index out_stride) {
  constexpr Index lanes = simd::lanes<T>;
  for (Index begin = 0; begin < cols; begin += detail::strip) {
    const Index end = std::min(begin + detail::strip, cols);
    for (Index f = 0; f < count; f += 4) {
      T* to = out + f * out_stride;
      for (Index c = begin; c < end; c += lanes) {
        simd::Packet<T> sum[4];
        for (int g = 0; g < 4; ++g) sum[g] = simd::load(to + g * out_stride + c);
        for (Index r = 0; r < rows; ++r) {
          const auto weight = simd::load(weights + r * w_stride + c);
          const T* x = features + r * f_stride + f;
          for (int g = 0; g < 4; ++g) sum[g] = simd::pmadd(simd::fill<T>(x[g]), weight, sum[g]);
        }
        for (int g = 0; g < 4; ++g) simd::store(to + g * out_stride + c, sum[g]);
      }
    }
  }
}

// out[f] = sum over i of weights[i] features(columns[i], f): the entries of one row. Features of key c
// begin at features[c * width], where `width` of them are whole vectors.
template <class T>
void gather_entries(const T* weights, std::span<const Column> columns, const T* features,
                    Index width, T* out) {
  constexpr int at_once = 4;
  constexpr Index lanes = simd::lanes<T>;
  std::fill_n(out, width, T(0));
  Index f = 0;
  for (; f + at_once * lanes <= width; f += at_once * lanes) {
    add_weighted_rows<at_once, 1>(weights, {features + f, width}, columns, out + f);
  }
  for (; f < width; f += lanes) {
    add_weighted_rows<1, 1>(weights, {features + f, width}, columns, out + f);
  }
}

// out(columns[i], f) += weights[i] features[f]: what the entries of one row add to their keys.
template <class T>
void spread_entries(const T* weights, std::span<const Column> columns, const T* features,
                    Index width, T* out) {
  for (std::size_t i = 0; i < columns.size(); ++i) {
    T* to = out + columns[i] * width;
    const auto weight = simd::fill<T>(weights[i]);
    for (Index f = 0; f < width; f += simd::lanes<T>) {
      simd::store(to + f, simd::pmadd(weight, simd::load(features + f), simd::load(to + f)));
    }
  }
}

// The products of all pairs of entries of x, stored as a lower triangle, row by row.
template <class T>
void pair_products(const T* x, Index dim, T* out, Index out_stride) {
  for (Index a = 0; a < dim; ++a) {
    for (Index b = 0; b <= a; ++b, out += out_stride) *out = x[a] * x[b];
  }
}

}  // namespace headfit::descent
