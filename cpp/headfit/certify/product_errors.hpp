// Bounds of the errors of a matrix product that another library computed, such as the queries
// X W_Q of a module. With them a certificate holds for the exact product.
#pragma once

#include "headfit/logits/heads.hpp"

namespace headfit {

// For every row of the stored product an upper bound of its Euclidean distance from the row of
// the exact product X W. The product was computed in double, in any order, its subnormal numbers
// kept or flushed to zero, and then perhaps rounded to float, the type it is stored in; a product
// that is stored in 16 bits is refused with an InputError.
// X is n x D, W is D x d, the product n x d: single heads. O(n (D + d) + D d).
Vector<double> product_errors(const Heads<double>& x, const Heads<double>& w,
                              const Heads<double>& product);

}  // namespace headfit
