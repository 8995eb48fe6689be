// Where a C++ program starts: a pattern, and five calls that find a head for it, judge the head and
// compute with it. Each calls the core as the Python package does; what these leave out (other
// methods and types, stacks of heads, biases, kernels) is in the headers of the rooms.
#pragma once

#include <Eigen/SparseCore>
#include <optional>
#include <vector>

#include "headfit/certify/certificate.hpp"
#include "headfit/logits/source.hpp"
#include "headfit/pattern/target.hpp"

namespace headfit {

// What share of its attention each of n tokens should give to which tokens. Owns its arrays.
class Pattern {
 public:
  // Rows of the n x n matrix sum to 1; zeros that it stores count as absent. Within `mask`, whose
  // arrays the caller keeps, a row may be empty only where the mask allows it no key. Throws a
  // TargetError that names the row, and the column where there is one; an InputError where the matrix
  // is not square.
  explicit Pattern(const Eigen::SparseMatrix<double, Eigen::RowMajor>& weights,
                   const Mask& mask = {});

  Index tokens() const { return static_cast<Index>(offsets_.size()) - 1; }
  // A view for the functions of the core; valid as long as the pattern.
  Target target() const;

 private:
  std::vector<Offset> offsets_{0};
  std::vector<Column> columns_;
  std::vector<double> weights_;
  Mask mask_;
};

// Queries and keys, each n x d. Attention is softmax(scale * Q K^T) over what the mask allows, whose
// arrays the caller keeps; a head that was found has the mask of its pattern, and so the same arrays.
// The module of size d with W_Q = [I; 0] and W_K = [0; I] makes them from the input X = [Q K].
struct Head {
  Matrix<float> q;
  Matrix<float> k;
  double scale = 1;
  Mask mask = {};

  // A view for the functions of the core; valid as long as the head. Throws an InputError if the mask
  // does not fit.
  LogitSource<float> logits() const;
};

// Searches for a head of size `dim` that meets the tolerances, with the learned method (see
// learned/fit_learned.hpp for its options); nothing if it finds none, which proves nothing.
// Deterministic for a seed, on any number of threads. The distortion must be positive.
std::optional<Head> find_head(const Pattern& pattern, Index dim, const Tolerances& tolerances = {},
                              std::uint64_t seed = 0, const Run& run = {});

// The head of the paper's proof: one random projection of the logits that the tolerances ask for.
// O(nnz d) time; it meets leak and distortion with high probability from some d = O(log n) on.
Head projected_head(const Pattern& pattern, Index dim, const Tolerances& tolerances = {},
                    std::uint64_t seed = 0, const Run& run = {});

// Judges a head, however it was made, by all n^2 entries of its attention, in exact arithmetic for
// the numbers that it holds. `CertificateRows::holds()` is the answer.
CertificateRows certify(const Pattern& pattern, const Head& head, const Tolerances& tolerances = {},
                        const Run& run = {});

// The n x n attention matrix of a head.
Matrix<float> attention(const Head& head, const Run& run = {});

// Attention times values (n x d_v), without the matrix: O(n (d + d_v)) memory.
Matrix<float> attend(const Head& head, const Matrix<float>& values, const Run& run = {});

}  // namespace headfit
