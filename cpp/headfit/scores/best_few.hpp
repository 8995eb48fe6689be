// The k largest logits of a row, as they come.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "headfit/base/types.hpp"

namespace headfit {

template <class T>
struct Candidate {
  T logit;
  Index col;
};

// Larger logits first, then lower columns.
struct Better {
  template <class T>
  bool operator()(const Candidate<T>& a, const Candidate<T>& b) const {
    return a.logit > b.logit || (a.logit == b.logit && a.col < b.col);
  }
};

template <class T>
class BestFew {
 public:
  void clear(Index most) {
    most_ = static_cast<std::size_t>(most);
    heap_.clear();
    heap_.reserve(most_);
  }

  // What must be exceeded: of equal logits the lower column stays.
  T limit() const {
    return heap_.size() == most_ ? heap_.front().logit : -std::numeric_limits<T>::infinity();
  }

  // A candidate that exceeds the limit.
  void push(const Candidate<T>& c) {
    if (heap_.size() == most_) {
      // c takes the place of the worst and sinks to where it belongs.
      std::size_t hole = 0;
      for (std::size_t child; (child = 2 * hole + 1) < most_; hole = child) {
        if (child + 1 < most_ && Better{}(heap_[child], heap_[child + 1])) ++child;
        if (!Better{}(c, heap_[child])) break;
        heap_[hole] = heap_[child];
      }
      heap_[hole] = c;
      return;
    }
    heap_.push_back(c);
    std::push_heap(heap_.begin(), heap_.end(), Better{});
  }

  // The best first; nothing can be pushed after this.
  const std::vector<Candidate<T>>& sorted() {
    std::sort(heap_.begin(), heap_.end(), Better{});
    return heap_;
  }

 private:
  std::size_t most_ = 0;
  std::vector<Candidate<T>> heap_;  // its front is the worst kept
};

}  // namespace headfit
