#include "headfit/soft/preconditioner.hpp"

#include <cmath>

#include "headfit/descent/cholesky.hpp"
#include "headfit/descent/feature_sums.hpp"

namespace headfit::soft {
namespace {

// The damping is relative to the mean eigenvalue of the block itself, and to that of all blocks,
// since a key that no row attends to has no curvature of its own.
constexpr double own_damping = 1e-2;
constexpr double common_damping = 1e-1;

}  // namespace

template <class T>
Preconditioner<T>::Preconditioner(Index rows, Index queries, Index dim, const Run& run)
    : rows_(rows),
      queries_(queries),
      dim_(dim),
      run_(run),
      factors_(static_cast<std::size_t>(rows * dim * dim)) {}

template <class T>
double Preconditioner<T>::mean_trace(const Matrix<T>& curvature, Index begin, Index end) const {
  double total = 0;
  for (Index i = begin; i < end; ++i) {
    for (Index a = 0; a < dim_; ++a)
      total += static_cast<double>(curvature(i, descent::triangle(a) + a));
  }
  return total / static_cast<double>(std::max<Index>(1, (end - begin) * dim_));
}

template <class T>
void Preconditioner<T>::refresh(const Matrix<T>& curvature) {
  const double query_mean = mean_trace(curvature, 0, queries_);
  const double key_mean = mean_trace(curvature, queries_, rows_);
  const auto factor_rows = [&](Index first, Index end) {
    for (Index i = first; i < end; ++i) {
      factor(curvature, i, i < queries_ ? query_mean : key_mean);
    }
  };
  parallel_rows(rows_, run_, [&] { return factor_rows; });
}

template <class T>
void Preconditioner<T>::factor(const Matrix<T>& curvature, Index row, double mean) {
  const T* h = curvature.data() + row * descent::triangle(dim_);
  T* l = factors_.data() + row * dim_ * dim_;
  double trace = 0;
  for (Index a = 0; a < dim_; ++a) trace += static_cast<double>(h[descent::triangle(a) + a]);
  const double damping = own_damping * trace / static_cast<double>(dim_) + common_damping * mean +
                         static_cast<double>(std::numeric_limits<T>::min());
  // The least pivot, where rounding made it smaller.
  const T smallest = static_cast<T>(1e-3 * damping);
  const auto lower = [&](Index a, Index b) -> T& { return l[a * dim_ + b]; };
  descent::cholesky(dim_, [&](Index a, Index b) {
    return h[descent::triangle(a) + b] + (a == b ? static_cast<T>(damping) : T(0));
  }, lower, [&](Index a, Index b, T v) {
    lower(a, b) = a == b ? 1 / std::sqrt(std::max(v, smallest)) : v * lower(b, b);
  });
}

template <class T>
void Preconditioner<T>::apply(Matrix<T>& x) const {
  const auto solve = [&](Index first, Index end) {
    for (Index i = first; i < end; ++i) {
      const T* l = factors_.data() + i * dim_ * dim_;
      T* y = x.data() + i * dim_;
      for (Index a = 0; a < dim_; ++a) {
        for (Index c = 0; c < a; ++c) y[a] -= l[a * dim_ + c] * y[c];
        y[a] *= l[a * dim_ + a];
      }
      for (Index a = dim_ - 1; a >= 0; --a) {
        y[a] *= l[a * dim_ + a];
        for (Index c = 0; c < a; ++c) y[c] -= l[a * dim_ + c] * y[a];
      }
    }
  };
  parallel_rows(rows_, run_, [&] { return solve; });
}

template class Preconditioner<float>;
template class Preconditioner<double>;

}  // namespace headfit::soft
