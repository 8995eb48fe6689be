// The random matrices of the projection, a row at a time, in any order and on any thread.
#pragma once

#include <cstdint>
#include <span>

#include "headfit/base/threads.hpp"
#include "headfit/random/philox.hpp"

namespace headfit {

enum class Sketch { gaussian, rademacher };

// The sketch G (n x d), entries of mean 0 and variance 1. Entry (j, l) depends on
// the seed, j and l alone: a wider sketch of the same seed begins with the narrower.
template <class T>
void fill_sketch(Sketch kind, std::uint64_t seed, Eigen::Ref<Matrix<T>> g, const Run& run);

// Makes rows of a sketch for one thread, in a buffer of its own.
template <class T>
class SketchRow {
 public:
  SketchRow(Sketch kind, std::uint64_t seed, Index d);

  // Row j times a factor; valid until the next.
  const T* make(Index j, T factor);

  // The row made last if it is Rademacher: 32 columns a word from the lowest bit, set for +1.
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
