// Rung one, the algorithm of the paper's proof: a random projection of the target
// logits. Likhosherstov, Choromanski, Weller, arXiv 2106.03764.
#pragma once

#include <cstdint>

#include "headfit/pattern/target.hpp"
#include "headfit/projection/sketch.hpp"

namespace headfit {

// Target logits B on the support of A (theory: log(A / min A) + tau), in the order
// of A's nonzeros. tau = log(1/leak) + log(1 + distortion).
void target_logits(const Target& target, double leak, double distortion, std::span<double> b);

// Identity factors: K = G / sqrt(d), Q = B K / scale, so E[scale * Q K^T] = B.
template <class T>
void project_identity(const Target& target, double leak, double distortion, Sketch kind,
                      std::uint64_t seed, double scale, Eigen::Ref<Matrix<T>> q,
                      Eigen::Ref<Matrix<T>> k, const Run& run);

}  // namespace headfit
