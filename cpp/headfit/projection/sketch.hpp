// The random matrices of the projection. Rows can be made one at a time, in any order, on any
// thread.
#pragma once

#include <cstdint>
#include <span>

#include "headfit/base/threads.hpp"
#include "headfit/random/philox.hpp"

namespace headfit {

enum class Sketch { gaussian, rademacher };

// Fills the sketch G (n x d), whose entries have mean 0 and variance 1. Entry (j, l) depends only
// on the seed, j and l: the first columns of a wider sketch are a narrower one of the same seed.
template <class T>
void fill_sketch(Sketch kind, std::uint64_t seed, Eigen::Ref<Matrix<T>> g, const Run& run);

// Makes rows of a sketch for one thread.
template <class T>
class SketchRow {
 public:
  SketchRow(Sketch kind, std::uint64_t seed, Index d);

  // Row j times a factor; valid until the next call.
  const T* make(Index j, T factor);

  // The signs of the row made last, if the sketch is Rademacher: 32 columns per word, from the
  // lowest bit on, which is set for +1.
  std::span<const std::uint32_t> signs() const {
    return {signs_.data(), static_cast<std::size_t>(signs_.size())};
  }
  static Index sign_words(Index d) { return (d + 127) / 128 * 4; }  // whole blocks of the stream

 private:
  Sketch kind_;
  Philox stream_;
  Vector<T> row_;
  Vector<std::uint32_t> signs_;
};

}  // namespace headfit
