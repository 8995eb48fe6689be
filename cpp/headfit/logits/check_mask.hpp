// The check of masks that a caller gives, and their comparison.
#pragma once

#include "headfit/logits/source.hpp"

namespace headfit {

// Throws an InputError unless the mask fits logits of this shape: windows that are not negative,
// key lengths within the number of keys, sparse rows with ascending offsets and sorted columns in
// range. A mask is a view, so how long its arrays are only their owner knows.
void check_mask(const Mask& mask, Index heads, Index rows, Index cols);

// Whether two masks that were checked allow the same positions. Takes O(rows + nonzeros) for each
// head where neither is dense.
bool masks_agree(const Mask& a, const Mask& b, Index heads, Index rows, Index cols);

}  // namespace headfit
