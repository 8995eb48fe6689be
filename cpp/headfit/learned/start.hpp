// The queries and keys that a fit starts with.
#pragma once

#include "headfit/learned/requirements.hpp"
#include "headfit/random/philox.hpp"

namespace headfit::learned {

// Draws random keys, and sets each query to twice the weighted mean of the keys on its support.
// Different attempts of one seed differ. A start with fewer columns is a part of one with more.
void random_start(const Requirements& required, const Philox& random, std::uint64_t attempt,
                  PaddedRows& q, PaddedRows& k);

// Copies the given columns, and fills missing columns with small random numbers.
void given_start(const MatrixView<float>& given_q, const MatrixView<float>& given_k,
                 const Philox& random, PaddedRows& q, PaddedRows& k);

}  // namespace headfit::learned
