#include "headfit/base/best_few.hpp"

#include <algorithm>

namespace headfit {
namespace {

// A type, not a function: algorithms inline its call.
struct Before {
  template <class Entry>
  bool operator()(const Entry& a, const Entry& b) const {
    return a.before(b);
  }
};

}  // namespace

template <class Entry>
const std::vector<Entry>& BestFew<Entry>::sorted() {
  if (kept_.size() > most_) shrink();
  std::sort(kept_.begin(), kept_.end(), Before{});
  return kept_;
}

template <class Entry>
void BestFew<Entry>::keep(const Entry& e) {
  kept_.push_back(e);
  if (is_heap()) {
    std::push_heap(kept_.begin(), kept_.end(), Before{});
    if (kept_.size() == most_) raise_bar(kept_.front());
  } else if (kept_.size() == 2 * most_) {
    shrink();
  }
}

template <class Entry>
void BestFew<Entry>::shrink() {
  const auto last = kept_.begin() + static_cast<std::ptrdiff_t>(most_ - 1);
  std::nth_element(kept_.begin(), last, kept_.end(), Before{});
  raise_bar(*last);
  kept_.resize(most_);
}

template class BestFew<Scored<float, Column>>;
template class BestFew<Scored<double, Column>>;
template class BestFew<Scored<float, Index>>;
template class BestFew<Scored<double, Index>>;

}  // namespace headfit
