// Singular values of a head's logits, from triangular factors of Q and K: no n x m matrix.
#pragma once

#include "headfit/base/threads.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {

// Row-major, (heads, d) each, falling. `centred`: of the logits without the mean of each
// row, which softmax does not see. Before softcap, bias and mask; padding is no key.
struct SpectrumOut {
  double* values = nullptr;
  double* centred = nullptr;
};

// With Q = U R and K = V T (QR decompositions) the singular values of Q K^T are those of
// the d x d matrix R T^T. In double; time O((n + m) d^2) a head, memory O(d^2) a thread.
template <class T>
void logit_spectrum(const LogitSource<T>& source, const SpectrumOut& out, const Run& run);

}  // namespace headfit
