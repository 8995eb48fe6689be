// Patterns of blocks: tokens that come in groups, all of which attend and are attended to alike.
#pragma once

#include "headfit/pattern/target.hpp"

namespace headfit {

// The size of the largest blocks of equal size (the last one may be smaller) that a target consists
// of; 0 if there are no blocks of two tokens and more, or only one. Within a block, rows have the
// same columns, but for those after the token itself where attention is causal; and the weights of
// a row are those of the last row of its block, up to a factor. Logarithms may differ by 1e-6.
Index block_size(const Target& target, bool is_causal, const Run& run);

}  // namespace headfit
