// The keys of a few heads, packed into panels for the microkernel by all threads.
#pragma once

#include <algorithm>
#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/logits/pack.hpp"

namespace headfit::detail {

// The packed keys of a few heads, and the largest |entry| of each head. The stream reads them again
// for every block of rows. They are the only copy of the keys in T.
template <class T>
class PackedKeys {
 public:
  PackedKeys(const LogitSource<T>& source, Index first_head, Index heads, const Run& run);

  T* panel(Index head, Index p) {
    return data_.data() + ((head - first_) * panels_ + p) * panel_size_;
  }
  Index first() const { return first_; }
  Index heads() const { return static_cast<Index>(max_abs_.size()); }
  double max_abs(Index head) const { return max_abs_[static_cast<std::size_t>(head - first_)]; }

 private:
  Index first_;
  Index panels_;
  Index panel_size_;
  std::vector<double> max_abs_;
  Buffer<T> data_;
};

// What stream_tiles packs beside the keys if the caller asks for nothing.
struct NoKeyExtras {
  Index cols() const { return 0; }
  void pack(Index, Index, const Run&) const {}
};

}  // namespace headfit::detail
