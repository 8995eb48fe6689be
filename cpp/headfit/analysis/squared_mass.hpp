// How much the error of one value changes what attention returns: the squares of the weights of a key.
#pragma once

#include "headfit/base/threads.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

// out, (heads, m), one row for each query head: the sum over rows of the squared attention weight of
// each key. Rows in which the mask allows nothing add nothing. Takes O(n m d) time and, besides the
// output, O(m d) memory per head and a few rows per thread.
template <class T>
void squared_mass(const LogitSource<T>& source, double* out, const Run& run);

}  // namespace headfit
