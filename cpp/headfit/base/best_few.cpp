#include "headfit/base/best_few.hpp"

#include <algorithm>

namespace headfit {
namespace {

// A function object and not a function pointer, so that the algorithms inline the comparison.
struct Before {
  template <class Item>
  bool operator()(const Item& a, const Item& b) const {
    return a.before(b);
  }
};

}  // namespace

template <class Item>
const std::vector<Item>& BestFew<Item>::sorted() {
  if (kept_.size() > most_) set_bar();
  std::sort(kept_.begin(), kept_.end(), Before{});
  return kept_;
}

template <class Item>
void BestFew<Item>::set_bar() {
  if (is_heap()) {
    std::make_heap(kept_.begin(), kept_.end(), Before{});
    return raise_bar(kept_.front());
  }
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
