// The view of a target in three NumPy arrays.
#pragma once

#include "arrays.hpp"
#include "headfit/pattern/target.hpp"

namespace headfit::python {

inline Target target_of(const Array<Offset>& offsets, const Array<Column>& columns,
                        const Array<double>& weights) {
  if (offsets.size() < 1 || columns.size() != weights.size() ||
      offsets.data()[offsets.size() - 1] != columns.size()) {
    throw TargetError("A must have row offsets that end at its number of nonzeros");
  }
  return {offsets.size() - 1, offsets.data(), columns.data(), weights.data()};
}

}  // namespace headfit::python
