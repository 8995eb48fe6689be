#include "headfit/soft/loss.hpp"

#include <memory>
#include <numeric>

#include "headfit/descent/feature_sums.hpp"
#include "headfit/descent/row_divergence.hpp"

namespace headfit::soft {
namespace {

// The number of chunks: as many as the memory for their sums allows, and at most one per block of
// rows.
template <class T>
Index chunk_count(Index rows, Index width, Index dim) {
  constexpr Index most = 16, least = 4, bytes = Index(128) << 20;
  const Index fits = bytes / std::max<Index>(1, width * descent::triangle(dim) * Index(sizeof(T)));
  const Index blocks = (rows + Blocking<T>::tile_rows - 1) / Blocking<T>::tile_rows;
  return std::clamp<Index>(std::clamp(fits, least, most), 1, std::max<Index>(1, blocks));
}

// The scratch memory of a thread.
template <class T>
struct LossScratch {
  explicit LossScratch(const TargetRows<T>& target) : reader(target) {}
  typename TargetRows<T>::Reader reader;
  Buffer<T> logits, weights;       // whole rows; settle() turns them into M and M - A
  Buffer<T> row_sums, row_means;   // one row of features for each row of the block
  Buffer<T> queries, query_pairs;
};

// What folds read and write. Features of the keys are stored feature by feature, `width` keys each.
template <class T>
struct LossPlan {
  const TargetRows<T>& target;
  const Matrix<T>& head;
  Index dim, width;
  const T* keys;
  const T* key_pairs;
  T* query_gradient;   // rows of dim entries
  T* query_curvature;  // rows of descent::triangle(dim) entries, or null
  double* row_loss;
};

// What one block of rows adds to the loss, its gradient and its curvature.
template <class T>
class LossFold : public WholeRows<T, Buffer<T>&> {
 public:
  LossFold(const LossPlan<T>& plan, std::span<const Index> rows, T* key_gradient, T* key_curvature,
           LossScratch<T>& scratch)
      : WholeRows<T, Buffer<T>&>(scratch.logits),
        plan_(plan),
        rows_(rows),
        key_gradient_(key_gradient),
        key_curvature_(key_curvature),
        scratch_(scratch),
        features_(descent::feature_count(plan.dim)),
        pairs_(descent::feature_count(descent::triangle(plan.dim))) {}

  void end(const RowBlock& block) {
    // Nothing is allowed, and all results are zero already.
    if (block.col_begin >= block.col_end) return;
    scratch_.reader.read(block, rows_, scratch_.weights.ensure(this->size(block)), this->stride());
    for (Index r = 0; r < block.count; ++r) settle(block, r);
    add_gradient(block);
    if (key_curvature_) add_curvature(block);
  }

 private:
  Index row_at(const RowBlock& block, Index r) const {
    return rows_[static_cast<std::size_t>(block.first + r)];
  }

  // Turns a row of logits into M, and the row of A into M - A; records the loss of the row.
  void settle(const RowBlock& block, Index r) {
    const Index i = row_at(block, r);
    plan_.row_loss[i] = descent::to_difference(scratch_.logits.data() + r * this->stride(),
                                               scratch_.weights.data() + r * this->stride(),
                                               this->padded(block), plan_.target.entropy(i));
  }

  void add_gradient(const RowBlock& block) {
    const T* difference = scratch_.weights.data();
    T* sums = scratch_.row_sums.ensure(block.count * pairs_);
    descent::gather(difference, this->stride(), block.count, plan_.keys + block.col_begin,
                    plan_.width, features_, this->padded(block), sums, features_);
    T* queries = scratch_.queries.ensure(block.count * features_);
    std::fill_n(queries, block.count * features_, T(0));
    for (Index r = 0; r < block.count; ++r) {
      const Index i = row_at(block, r);
      std::copy_n(sums + r * features_, plan_.dim, plan_.query_gradient + i * plan_.dim);
      std::copy_n(plan_.head.data() + i * plan_.dim, plan_.dim, queries + r * features_);
    }
    descent::spread(difference, this->stride(), block.count, queries, features_, features_,
                    this->padded(block), key_gradient_ + block.col_begin, plan_.width);
  }

  void add_curvature(const RowBlock& block) {
    T* m = scratch_.logits.data();
    T* means = scratch_.row_means.ensure(block.count * features_);
    T* seconds = scratch_.row_sums.data();
    descent::gather(m, this->stride(), block.count, plan_.keys + block.col_begin, plan_.width,
                    features_, this->padded(block), means, features_);
    descent::gather(m, this->stride(), block.count, plan_.key_pairs + block.col_begin, plan_.width,
                    pairs_, this->padded(block), seconds, pairs_);
    T* queries = scratch_.query_pairs.ensure(block.count * pairs_);
    std::fill_n(queries, block.count * pairs_, T(0));
    for (Index r = 0; r < block.count; ++r) {
      const Index i = row_at(block, r);
      T* h = plan_.query_curvature + i * descent::triangle(plan_.dim);
      descent::pair_products(means + r * features_, plan_.dim, h, 1);
      for (Index t = 0; t < descent::triangle(plan_.dim); ++t)
        h[t] = seconds[r * pairs_ + t] - h[t];
      descent::pair_products(plan_.head.data() + i * plan_.dim, plan_.dim, queries + r * pairs_, 1);
      T* row = m + r * this->stride();
      for (Index c = 0; c < this->padded(block); ++c) row[c] *= 1 - row[c];
    }
    descent::spread(m, this->stride(), block.count, queries, pairs_, pairs_, this->padded(block),
                    key_curvature_ + block.col_begin, plan_.width);
  }

  const LossPlan<T>& plan_;
  std::span<const Index> rows_;
  T* key_gradient_;
  T* key_curvature_;
  LossScratch<T>& scratch_;
  Index features_, pairs_;
};

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
  if (curvature) curvature->setZero(head.rows(), descent::triangle(dim_));
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
  const Index features = descent::feature_count(dim_) * width_;
  const Index pairs = descent::feature_count(descent::triangle(dim_)) * width_;
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
  if (curvature) add_chunks(&Chunk::curvature, descent::triangle(dim_), *curvature);
  return std::accumulate(row_loss_.begin(), row_loss_.end(), 0.0);
}

template <class T>
void Loss<T>::lay_out_keys(const Matrix<T>& head, bool with_pairs) {
  const Index features = descent::feature_count(dim_);
  const Index pairs = descent::feature_count(descent::triangle(dim_));
  T* rows = keys_.ensure(features * width_);
  std::fill_n(rows, features * width_, T(0));
  if (with_pairs) std::fill_n(pairs_.ensure(pairs * width_), pairs * width_, T(0));
  for (Index j = 0; j < keys(); ++j) {
    const T* key = head.data() + (queries() + j) * dim_;
    for (Index f = 0; f < dim_; ++f) rows[f * width_ + j] = key[f];
    if (with_pairs) descent::pair_products(key, dim_, pairs_.data() + j, width_);
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
