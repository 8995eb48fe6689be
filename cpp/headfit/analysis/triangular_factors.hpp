// Triangular factors of the queries and keys of every head, from which the singular values of
// its logits follow: those of scale * Q K^T are those of the small matrix R_Q R_K^T.
#pragma once

#include "headfit/base/threads.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

// Upper triangles R with R^T R = X^T X, row-major, d * d numbers for each of `count` query heads
// from `first` on.
struct TriangularFactors {
  Index first;
  Index count;
  double* queries;
  double* keys;
  // The factors of the keys minus their mean. They belong to logits minus the means of their rows,
  // which the softmax ignores.
  double* centred_keys;
};

// Reads rows as the products do: converted, rotated to their positions, without padding keys.
// Makes QR decompositions by blocks of rows, which take O((n + m) d^2) time and O(d^2) memory for
// each head.
template <class T>
void triangular_factors(const LogitSource<T>& source, const TriangularFactors& out, const Run& run);

}  // namespace headfit
