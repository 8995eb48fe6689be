// How an index makes a score of the products of its queries and keys.
#pragma once

namespace headfit {

// dot: one product. sum: the logarithm of the sum over query heads of the softmax of their products
// over all visible keys.
enum class IndexForm { sum, dot };

}  // namespace headfit
