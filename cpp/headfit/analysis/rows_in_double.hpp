// Queries and keys as the products see them, widened to double and turned to their positions:
// a block of rows at a time, for whoever factors them in Python.
#pragma once

#include "headfit/base/types.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

enum class Side { queries, keys };

// Rows first, first + 1, ..., at most `count` of them, of the queries of a head or of the keys
// that it reads; none where `first` lies behind the last row. Padding keys are left out.
template <class T>
Matrix<double> rows_in_double(const LogitSource<T>& source, Side side, Index head, Index first,
                              Index count);

}  // namespace headfit
