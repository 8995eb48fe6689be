// How far the queries and keys that a certificate is about may be from the stored ones: what a kernel
// makes of them before it multiplies, and the errors of products that another library computed.
#pragma once

#include <span>

#include "headfit/base/number_format.hpp"
#include "headfit/logits/heads.hpp"

namespace headfit {

// How a kernel rounds its operands: to a format, then times a factor, and to the format again. A
// factor of 1 changes nothing.
struct OperandRounding {
  NumberFormat format;
  double factor = 1;
  // Whether arithmetic may be that of float32: numbers of double may be rounded to it before they
  // are rounded to the format, a product may have a relative error of `product_error`, and
  // subnormal numbers may be flushed to zero.
  bool in_float32 = false;
  double product_error = 0;
};

// Writes the least and the largest number that each x may become. Infinity and NaN stay what they
// are, and numbers beyond the format become infinite.
template <class T>
void operand_bounds(std::span<const T> x, const OperandRounding& how, float* low, float* high);

// Bounds of the errors of a matrix product that another library computed, such as the queries X W_Q
// of a module. With them a certificate holds for the exact product.
//
// For every row of the stored product an upper bound of its Euclidean distance from the row of
// the exact product X W. The product was computed in double, in any order, its subnormal numbers
// kept or flushed to zero, and then perhaps rounded to float, the type it is stored in; a product
// that is stored in 16 bits is refused with an InputError.
// X is n x D, W is D x d, the product n x d: single heads. O(n (D + d) + D d).
Vector<double> product_errors(const Heads<double>& x, const Heads<double>& w,
                              const Heads<double>& product);

}  // namespace headfit
