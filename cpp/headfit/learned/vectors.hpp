// Matrices with rows that are padded with zeros to whole vectors, and operations on such rows.
#pragma once

#include <vector>

#include "headfit/logits/source.hpp"
#include "headfit/pattern/support_cursor.hpp"
#include "headfit/simd/packet.hpp"

namespace headfit::learned {

using Pack = simd::Packet<float>;
inline constexpr Index lanes = simd::lanes<float>;

class PaddedRows {
 public:
  PaddedRows(Index n, Index dim)
      : n_(n), dim_(dim), width_(padded(dim)), data_(static_cast<std::size_t>(n * width_), 0.0f) {}

  // Rows are padded to whole vectors, and to multiples of four, since curvatures are summed in
  // strips of four.
  static Index padded(Index dim) {
    const Index unit = std::max<Index>(lanes, 4);
    return (dim + unit - 1) / unit * unit;
  }

  Index rows() const { return n_; }
  Index dim() const { return dim_; }
  Index width() const { return width_; }
  float* row(Index i) { return data_.data() + i * width_; }
  const float* row(Index i) const { return data_.data() + i * width_; }
  Heads<float> heads(const EveryNth& rows = {}) const {
    const Index shown = (n_ - rows.first + rows.step - 1) / rows.step;
    return {row(rows.first), 1, shown, dim_, n_ * width_, rows.step * width_};
  }
  MatrixView<float> matrix() const { return heads()[0]; }
  void clear() { std::fill(data_.begin(), data_.end(), 0.0f); }
  void swap(PaddedRows& other) noexcept { data_.swap(other.data_); }

 private:
  Index n_, dim_, width_;
  std::vector<float> data_;
};

inline float dot(const float* a, const float* b, Index width) {
  Pack sum = simd::pmul(simd::load(a), simd::load(b));
  for (Index f = lanes; f < width; f += lanes) {
    sum = simd::pmadd(simd::load(a + f), simd::load(b + f), sum);
  }
  return simd::predux(sum);
}

// y += g x.
inline void add_scaled(float g, const float* x, float* y, Index width) {
  const Pack factor = simd::fill(g);
  for (Index f = 0; f < width; f += lanes) {
    simd::store(y + f, simd::pmadd(factor, simd::load(x + f), simd::load(y + f)));
  }
}

}  // namespace headfit::learned
