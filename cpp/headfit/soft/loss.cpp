#include "headfit/soft/loss.hpp"

#include <memory>
#include <numeric>

#include "headfit/logits/stream.hpp"
#include "headfit/soft/loss_fold.hpp"

namespace headfit::soft {
namespace {

// The number of chunks: as many as the memory for their sums allows, and at most one per block of
// rows.
template <class T>
Index chunk_count(Index rows, Index width, Index dim) {
  constexpr Index most = 16, least = 4, bytes = Index(128) << 20;
  const Index fits = bytes / std::max<Index>(1, width * triangle(dim) * Index(sizeof(T)));
  const Index blocks = (rows + Blocking<T>::tile_rows - 1) / Blocking<T>::tile_rows;
  return std::clamp<Index>(std::clamp(fits, least, most), 1, std::max<Index>(1, blocks));
}

}  // namespace

template <class T>
Loss<T>::Loss(const TargetRows<T>& target, const Mask& mask, Index dim, const Run& run)
    : target_(target),
      run_(run),
      dim_(dim),
      width_(round_up(target.cols(), Blocking<T>::panel)),
      chunks_(static_cast<std::size_t>(chunk_count<T>(target.rows(), width_, dim))),
      row_loss_(static_cast<std::size_t>(target.rows())) {
  source_.mask = mask;
  // Blocks of rows go to the chunks in turn, since under a causal mask later rows take longer.
  for (Index i = 0; i < target.rows(); ++i) {
    const auto tile = static_cast<std::size_t>(i / Blocking<T>::tile_rows);
    chunks_[tile % chunks_.size()].rows.push_back(i);
  }
}

template <class T>
double Loss<T>::evaluate(const Matrix<T>& head, Matrix<T>& gradient, Matrix<T>* curvature) {
  lay_out_keys(head, curvature != nullptr);
  gradient.setZero(head.rows(), dim_);
  if (curvature) curvature->setZero(head.rows(), triangle(dim_));
  std::fill(row_loss_.begin(), row_loss_.end(), 0.0);
  const LossPlan<T> plan{target_,
                         head,
                         dim_,
                         width_,
                         keys_.data(),
                         pairs_.data(),
                         gradient.data(),
                         curvature ? curvature->data() : nullptr,
                         row_loss_.data()};
  const Index features = feature_count(dim_) * width_;
  const Index pairs = feature_count(triangle(dim_)) * width_;
  parallel_tasks(static_cast<Index>(chunks_.size()), run_, [&] {
    return [&, scratch = std::make_unique<LossScratch<T>>(target_)](Index c) {
      Chunk& chunk = chunks_[static_cast<std::size_t>(c)];
      std::fill_n(chunk.gradient.ensure(features), features, T(0));
      T* key_curvature = nullptr;
      if (curvature) {
        key_curvature = chunk.curvature.ensure(pairs);
        std::fill_n(key_curvature, pairs, T(0));
      }
      LogitSource<T> source = source_;
      source.q = {head.data(), 1, queries(), dim_, queries() * dim_, dim_};
      source.k = {head.data() + queries() * dim_, 1, keys(), dim_, keys() * dim_, dim_};
      source.rows = std::span<const Index>(chunk.rows);
      stream_tiles(source, Run{1, {}}, [&] {
        return LossFold<T>(plan, chunk.rows, chunk.gradient.data(), key_curvature, *scratch);
      });
    };
  });
  add_chunks(&Chunk::gradient, dim_, gradient);
  if (curvature) add_chunks(&Chunk::curvature, triangle(dim_), *curvature);
  return std::accumulate(row_loss_.begin(), row_loss_.end(), 0.0);
}

template <class T>
void Loss<T>::lay_out_keys(const Matrix<T>& head, bool with_pairs) {
  const Index features = feature_count(dim_);
  const Index pairs = feature_count(triangle(dim_));
  T* rows = keys_.ensure(features * width_);
  std::fill_n(rows, features * width_, T(0));
  if (with_pairs) std::fill_n(pairs_.ensure(pairs * width_), pairs * width_, T(0));
  for (Index j = 0; j < keys(); ++j) {
    const T* key = head.data() + (queries() + j) * dim_;
    for (Index f = 0; f < dim_; ++f) rows[f * width_ + j] = key[f];
    if (with_pairs) pair_products(key, dim_, pairs_.data() + j, width_);
  }
}

// Adds the sums of all chunks, in order, to the rows of the keys.
template <class T>
void Loss<T>::add_chunks(Buffer<T> Chunk::* part, Index count, Matrix<T>& out) const {
  const auto add = [&](Index first, Index end) {
    for (const Chunk& chunk : chunks_) {
      const T* from = (chunk.*part).data();
      for (Index f = 0; f < count; ++f) {
        for (Index j = first; j < end; ++j) out(queries() + j, f) += from[f * width_ + j];
      }
    }
  };
  parallel_rows(keys(), run_, [&] { return add; }, 256);
}

template class Loss<float>;
template class Loss<double>;

}  // namespace headfit::soft
