// The gradient and curvature of one row: the sums of g x and of w x x^T over a few rows x.
#pragma once

#include "headfit/learned/vectors.hpp"

namespace headfit::learned {

class RowSums {
 public:
  explicit RowSums(Index dim)
      : dim_(dim),
        width_(PaddedRows::padded(dim)),
        rows_(static_cast<std::size_t>(at_once * width_)),
        weighted_(rows_.size()),
        gradient_(static_cast<std::size_t>(width_)),
        curvature_(static_cast<std::size_t>((dim + 3) / 4 * 4 * width_)) {}

  void clear() {
    std::fill(gradient_.begin(), gradient_.end(), 0.0f);
    std::fill(curvature_.begin(), curvature_.end(), 0.0f);
    pending_ = 0;
  }

  // Adds the row x - origin, with g = force and w = pull.
  void add(const float* x, const float* origin, float force, float pull) {
    add(force, pull,
        [&](Index f) { return simd::psub(simd::load(x + f), simd::load(origin + f)); });
  }
  void add(const float* x, float force, float pull) {
    add(force, pull, [&](Index f) { return simd::load(x + f); });
  }

  // Must be called before the sums are read.
  void finish() { flush(); }
  float gradient(Index a) const { return gradient_[static_cast<std::size_t>(a)]; }
  const float* curvature_row(Index a) const { return curvature_.data() + a * width_; }

 private:
  static constexpr Index at_once = 64;

  template <class Load>
  void add(float force, float pull, const Load& load) {
    float* x = rows_.data() + pending_ * width_;
    float* wx = weighted_.data() + pending_ * width_;
    const Pack g = simd::fill(force);
    const Pack w = simd::fill(pull);
    for (Index f = 0; f < width_; f += lanes) {
      const Pack v = load(f);
      simd::store(x + f, v);
      simd::store(wx + f, simd::pmul(w, v));
      simd::store(gradient_.data() + f, simd::pmadd(g, v, simd::load(gradient_.data() + f)));
    }
    if (++pending_ == at_once) flush();
  }

  // Adds to the lower triangle of the curvature, in strips of four rows that stay in registers.
  void flush() {
    for (Index a = 0; a < dim_; a += 4) {
      for (Index c = 0; c < std::min(a + 4, dim_); c += lanes) {
        float* h = curvature_.data() + a * width_ + c;
        Pack sum[4];
        for (Index r = 0; r < 4; ++r) sum[r] = simd::load(h + r * width_);
        const float* x = rows_.data() + c;
        const float* wx = weighted_.data() + a;
        for (Index m = 0; m < pending_; ++m, x += width_, wx += width_) {
          const Pack v = simd::load(x);
          for (Index r = 0; r < 4; ++r) sum[r] = simd::pmadd(simd::fill(wx[r]), v, sum[r]);
        }
        for (Index r = 0; r < 4; ++r) simd::store(h + r * width_, sum[r]);
      }
    }
    pending_ = 0;
  }

  Index dim_, width_;
  Index pending_ = 0;
  std::vector<float> rows_, weighted_;  // rows that are not yet part of the curvature
  std::vector<float> gradient_, curvature_;
};

}  // namespace headfit::learned
