#include "headfit/projection/projection.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "headfit/projection/key_sums.hpp"

namespace headfit {
namespace {

// log(a / b), also where the quotient overflows.
double log_ratio(double a, double b) {
  const double ratio = a / b;
  return std::isfinite(ratio) ? std::log(ratio) : std::log(a) - std::log(b);
}

// The target logits of the nonzeros of some rows.
void logits_of_rows(const Target& target, Index first, Index end, double tau, double* out) {
  // Calls visit(weight, least weight of the row, place in out), and returns the end of out.
  const auto for_each = [&](const auto& visit) {
    double* at = out;
    for (Index i = first; i < end; ++i) {
      const auto weights = target.row_weights(i);
      if (weights.empty()) continue;
      const double least = *std::min_element(weights.begin(), weights.end());
      for (const double weight : weights) visit(weight, least, *at++);
    }
    return at;
  };
  const double* stop =
      for_each([](double weight, double least, double& ratio) { ratio = weight / least; });
  Eigen::Map<Eigen::ArrayXd> logits(out, stop - out);
  logits = logits.log() + tau;
  if (logits.allFinite()) return;
  for_each([tau](double weight, double least, double& logit) {
    if (!std::isfinite(logit)) logit = log_ratio(weight, least) + tau;
  });
}

double tau_of(const Tolerances& tolerances) {
  return log_ratio(1, tolerances.leak) + std::log1p(tolerances.distortion);
}

// How many rows a thread takes at a time. They should cover several pages of memory (of up to 2
// MiB): the system clears a page when it is first written to, and where two threads write to the
// same new page at once, it clears one for each. Rows are not written past the caches, since these
// hold a page that was just cleared.
Index rows_at_once(Index rows, Index row_bytes) {
  constexpr Index few = 64, bytes = Index(8) << 20;
  return std::max(few, std::min(bytes / std::max<Index>(1, row_bytes), rows / few));
}

// Writes K = G / sqrt(d), and the signs of a Rademacher sketch.
template <class T>
void write_keys(Sketch kind, std::uint64_t seed, T size, Eigen::Ref<Matrix<T>> k,
                Matrix<std::uint32_t>& signs, const Run& run) {
  parallel_rows(k.rows(), run, [&] {
    return [&, row = SketchRow<T>(kind, seed, k.cols()),
            checkpoints = Checkpoints()](Index first, Index end) mutable {
      for (Index j = first; j < end; ++j) {
        const T* values = row.make(j, size);
        std::copy(row.signs().begin(), row.signs().end(), signs.row(j).data());
        std::copy_n(values, k.cols(), k.row(j).data());
        checkpoints.after(4 * k.cols());
      }
    };
  }, rows_at_once(k.rows(), k.cols() * Index(sizeof(T))));
}

// Computes Q = B K / scale, for a few rows and a strip of columns at a time.
template <class T, class Keys>
class QueryRows {
 public:
  QueryRows(const Target& target, double tau, double scale, const Keys& keys,
            Eigen::Ref<Matrix<T>> q)
      : target_(target), tau_(tau), scale_(static_cast<T>(scale)), keys_(keys), q_(q) {}

  void operator()(Index first, Index end) {
    logits_.resize(target_.offsets[end] - target_.offsets[first]);
    logits_of_rows(target_, first, end, tau_, logits_.data());
    weights_ = logits_.cast<T>();
    for (Index begin = 0; begin < q_.cols(); begin += Keys::strip) {
      const Index count = std::min(Keys::strip, q_.cols() - begin);
      for (Index i = first; i < end; ++i) {
        const T* weights = weights_.data() + (target_.offsets[i] - target_.offsets[first]);
        keys_.sum(list_of(i), weights, begin, count, sums_.data());
        checkpoints_.after(count * (1 + target_.offsets[i + 1] - target_.offsets[i]));
        q_.row(i).segment(begin, count) = Eigen::Map<const RowVector>(sums_.data(), count) / scale_;
      }
    }
  }

 private:
  using RowVector = Eigen::Matrix<T, 1, Eigen::Dynamic>;

  KeyList list_of(Index i) const {
    const Column* columns = target_.columns + target_.offsets[i];
    const Index count = target_.offsets[i + 1] - target_.offsets[i];
    const Index ahead = keys_.ahead();
    const bool is_last = target_.offsets[i + 1] + ahead > target_.nonzeros();
    return {columns, is_last ? columns : columns + ahead, count};
  }

  const Target& target_;
  double tau_;
  T scale_;
  Keys keys_;
  Eigen::Ref<Matrix<T>> q_;
  Checkpoints checkpoints_;
  Vector<double> logits_;
  Vector<T> weights_;
  std::array<T, std::size_t(Keys::strip + 64)> sums_{};
};

template <class T, class Keys>
void write_queries(const Target& target, double tau, double scale, const Keys& keys,
                   Eigen::Ref<Matrix<T>> q, const Run& run) {
  parallel_rows(target.n, run, [&] { return QueryRows<T, Keys>(target, tau, scale, keys, q); },
                rows_at_once(target.n, q.cols() * Index(sizeof(T))));
}

}  // namespace

void target_logits(const Target& target, const Tolerances& tolerances, std::span<double> b,
                   const Run& run) {
  tolerances.check();
  check_entries(target, run);
  if (static_cast<Offset>(b.size()) != target.nonzeros()) {
    throw InputError("b must have a place for each of the ", target.nonzeros(),
                     " nonzeros of A; got ", b.size());
  }
  logits_of_rows(target, 0, target.n, tau_of(tolerances), b.data());
}

template <class T>
void project_identity(const Target& target, const Tolerances& tolerances,
                      const ProjectionOptions& options, Eigen::Ref<Matrix<T>> q,
                      Eigen::Ref<Matrix<T>> k, const Run& run) {
  tolerances.check();
  if (!(std::isfinite(options.scale) && options.scale != 0)) {
    throw InputError("scale must be finite and nonzero; got ", options.scale);
  }
  if (q.rows() != target.n || k.rows() != target.n || q.cols() != k.cols() || k.cols() < 1) {
    throw InputError("Q and K must have one row for each of the ", target.n,
                     " rows of A and equally many columns, at least one; got ", q.rows(), " x ",
                     q.cols(), " and ", k.rows(), " x ", k.cols());
  }
  check_entries(target, run);
  const double tau = tau_of(tolerances);
  const Sketch kind = options.sketch;
  const T size = static_cast<T>(1 / std::sqrt(static_cast<double>(k.cols())));
  const Index words = kind == Sketch::rademacher ? SketchRow<T>::sign_words(k.cols()) : 0;
  Matrix<std::uint32_t> signs(target.n, words);
  write_keys<T>(kind, options.seed, size, k, signs, run);
  if (kind == Sketch::rademacher) {
    const SignKeys<T> keys(signs.data(), words, size);
    write_queries<T>(target, tau, options.scale, keys, q, run);
  } else {
    const StoredKeys<T> keys(k.data(), k.cols(), k.outerStride());
    write_queries<T>(target, tau, options.scale, keys, q, run);
  }
}

template void project_identity<float>(const Target&, const Tolerances&, const ProjectionOptions&,
                                      Eigen::Ref<Matrix<float>>, Eigen::Ref<Matrix<float>>,
                                      const Run&);
template void project_identity<double>(const Target&, const Tolerances&, const ProjectionOptions&,
                                       Eigen::Ref<Matrix<double>>, Eigen::Ref<Matrix<double>>,
                                       const Run&);

}  // namespace headfit
