// Where a fit begins.
#pragma once

#include "headfit/learned/requirements.hpp"
#include "headfit/random/philox.hpp"

namespace headfit::learned {

// Random keys; a query starts at twice the weighted mean of the keys it must find. Attempts
// of one seed differ, and a start of fewer columns is a part of one of more.
void random_start(const Requirements& required, const Philox& random, std::uint64_t attempt,
                  PaddedRows& q, PaddedRows& k);

// The given columns, and small random numbers in those that are missing.
void given_start(const MatrixView<float>& given_q, const MatrixView<float>& given_k,
                 const Philox& random, PaddedRows& q, PaddedRows& k);

}  // namespace headfit::learned
