// The best few scores of a row that come after a given one, as the row goes by.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "headfit/scores/softmax_row.hpp"
#include "headfit/sparsify/row_lists.hpp"

namespace headfit {

template <class T>
class BestOfRow {
 public:
  struct Scored {
    T score;
    Column col;
  };

  void start(Index limit, double last_score, Column last_col) {
    limit_ = static_cast<std::size_t>(limit);
    after_ = {static_cast<T>(last_score), last_col};
    bar_ = {nothing, std::numeric_limits<Column>::max()};
    pool_.clear();
    pool_.reserve(2 * limit_ + slack);
  }

  // Entries of a stretch of the row, padded to whole vectors with -inf.
  template <class Admit>
  void offer(const T* x, Index col, Index padded, const Admit& admit) {
    constexpr Index lanes = simd::lanes<T>;
    for (Index begin = 0; begin < padded; begin += lanes) {
      if (!(simd::ei::predux_max(simd::load(x + begin)) > bar_.score)) continue;
      for (Index c = begin; c < begin + lanes; ++c) {
        offer_one({x[c], static_cast<Column>(col + c)}, admit);
      }
    }
  }

  template <class Admit>
  void offer_one(const Scored& s, const Admit& admit) {
    if (!(s.score > nothing) || !before(s, bar_) || !before(after_, s) || !admit(s)) return;
    pool_.push_back(s);
    if (pool_.size() == 2 * limit_ + slack) shrink();
  }

  // Writes the list of the row, with keys key_of(score); an entry whose share of the row
  // is below `least` in terms of its key ends it.
  template <class KeyOf>
  void finish(RowList& list, const KeyOf& key_of, double least) {
    list.complete = pool_.size() < limit_;  // it never shrinks below
    if (pool_.size() > limit_) shrink();
    std::sort(pool_.begin(), pool_.end(), before);
    list.entries.clear();
    list.next = 0;
    for (const Scored& s : pool_) {
      const double key = key_of(static_cast<double>(s.score));
      if (key < least) {
        list.complete = true;
        break;
      }
      list.entries.push_back({key, s.col});
      list.last_score = static_cast<double>(s.score);
      list.last_col = s.col;
    }
  }

 private:
  static constexpr T nothing = -std::numeric_limits<T>::infinity();

  // A type, not a function: algorithms inline its call.
  struct Before {
    bool operator()(const Scored& a, const Scored& b) const {
      return a.score > b.score || (a.score == b.score && a.col < b.col);
    }
  };
  static constexpr Before before{};

  // Leaves the best `limit`; what comes later must beat the last of them. Once for every
  // limit entries that come: constant time each, where a heap takes log(limit).
  void shrink() {
    const auto last = pool_.begin() + static_cast<std::ptrdiff_t>(limit_ - 1);
    std::nth_element(pool_.begin(), last, pool_.end(), before);
    bar_ = *last;
    pool_.resize(limit_);
  }

  static constexpr std::size_t slack = 16;
  std::size_t limit_ = 0;
  Scored after_{};  // only what comes after it in the order counts
  Scored bar_{};    // and what comes before it
  std::vector<Scored> pool_;
};

}  // namespace headfit
