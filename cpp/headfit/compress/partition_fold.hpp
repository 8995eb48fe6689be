// The fold for heads without a soft-cap: the logarithms of the sums of exponentials of the smaller
// head. With what was measured once of the original (measure.hpp) they are the divergence.
#pragma once

#include "headfit/compress/partition.hpp"
#include "headfit/compress/unit_fold.hpp"

namespace headfit::compress {

template <class T>
class PartitionFold : public UnitFold<T> {
 public:
  // Adds to `log_sums` the logarithms of the rows, and to the gradient of the work that of their sum.
  PartitionFold(const LogitSource<T>& source, UnitWork<T>& work, double& log_sums)
      : UnitFold<T>(source, work), log_sums_(log_sums) {}

  void end(const RowBlock& block) {
    // Nothing is allowed, and the gradient is zero already.
    if (block.col_begin >= block.col_end) return;
    T* factors = this->work_.factors.ensure(block.count);
    Partition<T> partition(this->source_.sink(0));
    for (Index r = 0; r < block.count; ++r) {
      factors[r] = partition.to_exponentials(this->logits(r), this->padded(block));
    }
    log_sums_ += partition.log_sums();
    if (this->work_.with_gradient) this->add_gradient(block, this->logits(0), factors);
  }

 private:
  double& log_sums_;
};

}  // namespace headfit::compress
