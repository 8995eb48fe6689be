// The type aliases that the whole core uses.
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

// Row-major views of memory that the caller owns; there may be gaps between rows.
template <class T>
using MatrixView = Eigen::Map<const Matrix<T>, Eigen::Unaligned, RowStride>;

template <class T>
using MutableMatrixView = Eigen::Map<Matrix<T>, Eigen::Unaligned, RowStride>;

// Column numbers fit into 32 bits; offsets into all nonzeros of a matrix need 64.
using Column = std::int32_t;
using Offset = std::int64_t;

inline Index round_up(Index x, Index multiple) { return (x + multiple - 1) / multiple * multiple; }

}  // namespace headfit
