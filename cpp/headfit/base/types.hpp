// The type aliases of the whole core, written once.
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <span>

namespace headfit {

using Index = Eigen::Index;

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
using Vector = Eigen::Matrix<T, Eigen::Dynamic, 1>;

using RowStride = Eigen::OuterStride<>;

// Row-major views over memory that somebody else owns; rows may be apart.
template <class T>
using MatrixView = Eigen::Map<const Matrix<T>, Eigen::Unaligned, RowStride>;

template <class T>
using MutableMatrixView = Eigen::Map<Matrix<T>, Eigen::Unaligned, RowStride>;

// Columns of a sparse row fit 32 bits; offsets into all nonzeros need 64.
using Column = std::int32_t;
using Offset = std::int64_t;

inline Index round_up(Index x, Index multiple) { return (x + multiple - 1) / multiple * multiple; }

}  // namespace headfit
