// Numbers of all keys, such as features or sums, as folds of rows read and write them: feature by
// feature for tiles, and key by key for single entries.
#pragma once

#include "headfit/descent/feature_sums.hpp"
#include "headfit/logits/pack.hpp"

namespace headfit::descent {

template <class T>
class KeyTable {
 public:
  // Makes `count` numbers of each key zero, in the layouts that keys are packed in.
  void reset(Index keys, Index count, const KeyLayouts& layouts) {
    layouts_ = layouts;
    keys_ = keys;
    count_ = count;
    width_ = round_up(keys, Blocking<T>::panel);
    key_width_ = round_up(count, simd::lanes<T>);
    const Index by_feature = layouts.panels ? feature_count(count) * width_ : 0;
    const Index by_key = layouts.rows ? keys * key_width_ : 0;
    std::fill_n(by_feature_.ensure(by_feature), by_feature, T(0));
    std::fill_n(by_key_.ensure(by_key), by_key, T(0));
  }

  // Sets the numbers of the keys from `first` on to the rows of a matrix.
  template <class Rows>
  void set(const Rows& numbers, Index first = 0) {
    if (layouts_.panels) {
      MutableMatrixView<T>(features() + first, count_, numbers.rows(), RowStride(width_)) =
          numbers.transpose();
    }
    if (layouts_.rows) {
      MutableMatrixView<T>(rows() + first * key_width_, numbers.rows(), count_,
                           RowStride(key_width_)) = numbers;
    }
  }

  // Feature f of key c is number f * width() + c.
  T* features() { return by_feature_.data(); }
  const T* features() const { return by_feature_.data(); }
  Index width() const { return width_; }
  // Those of key c are numbers c * key_width(), c * key_width() + 1 ..., padded to whole vectors.
  T* rows() { return by_key_.data(); }
  const T* rows() const { return by_key_.data(); }
  Index key_width() const { return key_width_; }

  // Adds the numbers of the keys first ... end - 1 to rows of a matrix that has one for each key.
  template <class Rows>
  void add_to(Index first, Index end, Rows&& out) const {
    for (Index f = 0; layouts_.panels && f < count_; ++f) {
      for (Index j = first; j < end; ++j) out(j, f) += by_feature_.data()[f * width_ + j];
    }
    for (Index j = first; layouts_.rows && j < end; ++j) {
      for (Index f = 0; f < count_; ++f) out(j, f) += by_key_.data()[j * key_width_ + f];
    }
  }

  // Calls work(matrix) with a matrix of one row for each key, for each layout.
  template <class Work>
  void for_layouts(const Work& work) const {
    if (layouts_.panels) {
      work(MatrixView<T>(features(), count_, keys_, RowStride(width_)).transpose());
    }
    if (layouts_.rows) work(MatrixView<T>(rows(), keys_, count_, RowStride(key_width_)));
  }

 private:
  KeyLayouts layouts_;
  Index keys_ = 0, count_ = 0, width_ = 0, key_width_ = 0;
  Buffer<T> by_feature_, by_key_;
};

}  // namespace headfit::descent
