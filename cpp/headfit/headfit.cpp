#include "headfit/headfit.hpp"

#include <cmath>

#include "headfit/attention/attention.hpp"
#include "headfit/learned/fit_learned.hpp"
#include "headfit/projection/projection.hpp"

namespace headfit {
Pattern::Pattern(const Eigen::SparseMatrix<double, Eigen::RowMajor>& weights, const Mask& mask)
    : mask_(mask) {
  if (weights.rows() != weights.cols()) {
    throw InputError("a pattern must be a square matrix; got ", weights.rows(), " x ",
                     weights.cols());
  }
  using Nonzero = Eigen::SparseMatrix<double, Eigen::RowMajor>::InnerIterator;
  for (Index i = 0; i < weights.rows(); ++i) {
    for (Nonzero entry(weights, i); entry; ++entry) {
      if (entry.value() == 0) continue;
      columns_.push_back(static_cast<Column>(entry.col()));
      weights_.push_back(entry.value());
    }
    offsets_.push_back(static_cast<Offset>(columns_.size()));
  }
  validate_target(target(), default_sum_tolerance, {});
}

Target Pattern::target() const {
  return {tokens(), offsets_.data(), columns_.data(), weights_.data(), mask_};
}

LogitSource<float> Head::logits() const {
  check_mask(mask, 1, q.rows(), k.rows());
  LogitSource<float> source;
  source.q = heads_of(q);
  source.k = heads_of(k);
  source.scale = scale;
  source.mask = mask;
  return source;
}

std::optional<Head> find_head(const Pattern& pattern, Index dim, const Tolerances& tolerances,
                              std::uint64_t seed, const Run& run) {
  LearnedOptions options;
  options.dim = dim;
  options.seed = seed;
  const Target target = pattern.target();
  LearnedResult result = fit_learned(target, tolerances, options, run);
  if (result.status != LearnedStatus::Met) return {};
  return Head{std::move(result.q), std::move(result.k), 1, target.mask};
}

Head projected_head(const Pattern& pattern, Index dim, const Tolerances& tolerances,
                    std::uint64_t seed, const Run& run) {
  if (dim < 1) throw InputError("dim must be at least 1; got ", dim);
  tolerances.check();
  const Target target = pattern.target();
  Head head{Matrix<float>(target.n, dim), Matrix<float>(target.n, dim),
            1 / std::sqrt(static_cast<double>(dim)), target.mask};
  project_identity<float>(target, tolerances, {Sketch::rademacher, seed, head.scale}, head.q,
                          head.k, run);
  return head;
}

CertificateRows certify(const Pattern& pattern, const Head& head, const Tolerances& tolerances,
                        const Run& run) {
  return certify_logits(pattern.target(), head.logits(), tolerances, {}, run);
}

Matrix<float> attention(const Head& head, const Run& run) {
  Matrix<float> matrix(head.q.rows(), head.k.rows());
  attention_matrix(head.logits(), output_of(matrix), run);
  return matrix;
}

Matrix<float> attend(const Head& head, const Matrix<float>& values, const Run& run) {
  if (values.rows() != head.k.rows()) {
    throw InputError("there must be one row of values for each of ", head.k.rows(), " keys; got ",
                     values.rows());
  }
  Matrix<float> result(head.q.rows(), values.cols());
  attention_apply(head.logits(), heads_of(values), output_of(result), run);
  return result;
}

}  // namespace headfit
