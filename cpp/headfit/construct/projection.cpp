#include "headfit/construct/projection.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "headfit/base/random.hpp"

namespace headfit {
namespace {

constexpr Index rows_per_task = 64;

template <class T>
using Row = Eigen::Ref<Eigen::Matrix<T, 1, Eigen::Dynamic>>;

// 128 signs from each block of the stream.
template <class T>
void rademacher_row(const Philox& stream, Index row, Row<T> out) {
  for (Index begin = 0; begin < out.size(); begin += 128) {
    const RandomBlock block =
        stream(static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(begin / 128));
    const Index end = std::min<Index>(begin + 128, out.size());
    for (Index l = begin; l < end; ++l) {
      const std::uint32_t word = block[static_cast<std::size_t>((l - begin) / 32)];
      out[l] = (word >> ((l - begin) % 32)) & 1u ? T(1) : T(-1);
    }
  }
}

// Four normals from each block: two pairs by Box and Muller, a vector of blocks at a time.
template <class T>
void gaussian_row(const Philox& stream, Index row, Row<T> out) {
  constexpr Index blocks = 64;
  using Lane = Eigen::Array<T, blocks, 1>;
  const T unit = T(1) / T(4294967296.0);
  for (Index begin = 0; begin < out.size(); begin += 4 * blocks) {
    Eigen::Array<T, 4, blocks, Eigen::RowMajor> u;
    for (Index b = 0; b < blocks; ++b) {
      const RandomBlock block =
          stream(static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(begin / 4 + b));
      for (Index w = 0; w < 4; ++w) {
        u(w, b) = (static_cast<T>(block[static_cast<std::size_t>(w)]) + T(0.5)) * unit;
      }
    }
    Eigen::Array<T, blocks, 4, Eigen::RowMajor> normal;  // in the order of the stream
    for (Index pair = 0; pair < 4; pair += 2) {
      const Lane radius = (T(-2) * u.row(pair).transpose().log()).max(T(0)).sqrt();
      const Lane angle = u.row(pair + 1).transpose() * T(2 * std::numbers::pi);
      normal.col(pair) = radius * angle.cos();
      normal.col(pair + 1) = radius * angle.sin();
    }
    const Index count = std::min<Index>(4 * blocks, out.size() - begin);
    std::copy_n(normal.data(), count, out.data() + begin);
  }
}

template <class T>
void sketch_row(Sketch kind, const Philox& stream, Index row, Row<T> out) {
  if (kind == Sketch::gaussian) {
    gaussian_row<T>(stream, row, out);
  } else {
    rademacher_row<T>(stream, row, out);
  }
}

}  // namespace

template <class T>
void fill_sketch(Sketch kind, std::uint64_t seed, Eigen::Ref<Matrix<T>> g, const Run& run) {
  const Philox stream(seed);
  parallel_for((g.rows() + rows_per_task - 1) / rows_per_task, run, [&](Index task) {
    const Index end = std::min((task + 1) * rows_per_task, g.rows());
    for (Index j = task * rows_per_task; j < end; ++j) sketch_row<T>(kind, stream, j, g.row(j));
  });
}

void target_logits(const Target& target, double leak, double distortion, std::span<double> b) {
  const double tau = std::log(1 / leak) + std::log1p(distortion);
  for (Index i = 0; i < target.n; ++i) {
    const auto weights = target.row_weights(i);
    if (weights.empty()) continue;
    const double least = *std::min_element(weights.begin(), weights.end());
    for (std::size_t p = 0; p < weights.size(); ++p) {
      b[static_cast<std::size_t>(target.offsets[i]) + p] = std::log(weights[p] / least) + tau;
    }
  }
}

template <class T>
void project_identity(const Target& target, double leak, double distortion, Sketch kind,
                      std::uint64_t seed, double query_scale, Eigen::Ref<Matrix<T>> q,
                      Eigen::Ref<Matrix<T>> k, const Run& run) {
  std::vector<double> b(static_cast<std::size_t>(target.nonzeros()));
  target_logits(target, leak, distortion, b);
  fill_sketch<T>(kind, seed, k, run);
  k *= static_cast<T>(1 / std::sqrt(static_cast<double>(k.cols())));
  parallel_for((target.n + rows_per_task - 1) / rows_per_task, run, [&](Index task) {
    const Index end = std::min((task + 1) * rows_per_task, target.n);
    for (Index i = task * rows_per_task; i < end; ++i) {
      q.row(i).setZero();
      const auto columns = target.row_columns(i);
      const double* row_logits = b.data() + target.offsets[i];
      for (std::size_t p = 0; p < columns.size(); ++p) {
        q.row(i) += static_cast<T>(query_scale * row_logits[p]) * k.row(columns[p]);
      }
    }
  });
}

template void fill_sketch<float>(Sketch, std::uint64_t, Eigen::Ref<Matrix<float>>, const Run&);
template void fill_sketch<double>(Sketch, std::uint64_t, Eigen::Ref<Matrix<double>>, const Run&);
template void project_identity<float>(const Target&, double, double, Sketch, std::uint64_t, double,
                                      Eigen::Ref<Matrix<float>>, Eigen::Ref<Matrix<float>>,
                                      const Run&);
template void project_identity<double>(const Target&, double, double, Sketch, std::uint64_t, double,
                                       Eigen::Ref<Matrix<double>>, Eigen::Ref<Matrix<double>>,
                                       const Run&);

}  // namespace headfit
