// Rung one, the algorithm of the paper's proof: a random projection of the target
// logits. Likhosherstov, Choromanski, Weller, arXiv 2106.03764.
#pragma once

#include <cstdint>

#include "headfit/base/threads.hpp"
#include "headfit/pattern/target.hpp"

namespace headfit {

enum class Sketch { gaussian, rademacher };

// The sketch G (n x d), entries of mean 0 and variance 1. Entry (j, l) depends on
// the seed, j and l alone: a wider sketch of the same seed begins with the narrower.
template <class T>
void fill_sketch(Sketch kind, std::uint64_t seed, Eigen::Ref<Matrix<T>> g, const Run& run);

// Target logits B on the support of A (theory: log(A / min A) + tau), in the order
// of A's nonzeros. tau = log(1/leak) + log(1 + distortion).
void target_logits(const Target& target, double leak, double distortion, std::span<double> b);

// Identity factors: K = G / sqrt(d), Q = query_scale * B K, so E[Q K^T] = query_scale * B.
template <class T>
void project_identity(const Target& target, double leak, double distortion, Sketch kind,
                      std::uint64_t seed, double query_scale, Eigen::Ref<Matrix<T>> q,
                      Eigen::Ref<Matrix<T>> k, const Run& run);

}  // namespace headfit
