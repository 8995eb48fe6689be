#include "headfit/soft/loss.hpp"

#include <memory>
#include <numeric>

#include "headfit/descent/row_divergence.hpp"

namespace headfit::soft {
namespace {

using descent::KeyTable;

// The number of chunks: as many as the memory for their sums allows, and at most one per block of
// rows.
template <class T>
Index chunk_count(Index rows, Index keys, Index dim) {
  constexpr Index most = 16, least = 4, bytes = Index(128) << 20;
  const Index width = round_up(keys, Blocking<T>::panel);
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

// What folds read and write.
template <class T>
struct LossPlan {
  const TargetRows<T>& target;
  const Matrix<T>& head;
  Index dim;
  const KeyTable<T>& keys;
  const KeyTable<T>& key_pairs;
  T* query_gradient;   // rows of dim entries
  T* query_curvature;  // rows of descent::triangle(dim) entries, or null
  double* row_loss;
};

// What one block of rows adds to the loss, its gradient and its curvature.
template <class T>
class LossFold : public WholeRows<T, Buffer<T>&> {
 public:
  // `key_curvature` is null where no curvature is wanted.
  LossFold(const LossPlan<T>& plan, std::span<const Index> rows, KeyTable<T>& key_gradient,
           KeyTable<T>* key_curvature, LossScratch<T>& scratch)
      : WholeRows<T, Buffer<T>&>(scratch.logits),
        plan_(plan),
        rows_(rows),
        key_gradient_(key_gradient),
        key_curvature_(key_curvature),
        scratch_(scratch),
        features_(descent::feature_count(plan.dim)),
        pairs_(descent::feature_count(descent::triangle(plan.dim))) {}

  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    const Index i = row_at(block, r);
    T* weights = scratch_.reader.read(i, entries.columns);
    settle(i, entries.data, weights, entries.padded());
    add_gradient(i, entries.columns, weights);
    if (key_curvature_) add_curvature(i, entries);
  }

  void end(const RowBlock& block) {
    // Nothing is allowed, and all results are zero already.
    if (block.by_entries || block.col_begin >= block.col_end) return;
    scratch_.reader.read(block, rows_, scratch_.weights.ensure(this->size(block)), this->stride());
    for (Index r = 0; r < block.count; ++r) {
      settle(row_at(block, r), scratch_.logits.data() + r * this->stride(),
             scratch_.weights.data() + r * this->stride(), this->padded(block));
    }
    add_gradient(block);
    if (key_curvature_) add_curvature(block);
  }

 private:
  Index row_at(const RowBlock& block, Index r) const {
    return rows_[static_cast<std::size_t>(block.first + r)];
  }

  // Turns the logits of row i into M, and the row of A into M - A; records the loss of the row.
  void settle(Index i, T* logits, T* weights, Index padded) {
    if (!plan_.target.attends(i)) {  // whatever the mask shows it, it has no part in the loss
      std::fill_n(logits, padded, T(0));
      std::fill_n(weights, padded, T(0));
      plan_.row_loss[i] = 0;
      return;
    }
    plan_.row_loss[i] = descent::to_difference(logits, weights, padded, plan_.target.entropy(i));
  }

  void add_gradient(Index i, std::span<const Column> columns, const T* difference) {
    const Index width = plan_.keys.key_width();
    T* sums = scratch_.row_sums.ensure(width);
    descent::gather_entries(difference, columns, plan_.keys.rows(), width, sums);
    std::copy_n(sums, plan_.dim, plan_.query_gradient + i * plan_.dim);
    T* query = scratch_.queries.ensure(width);
    std::fill_n(query, width, T(0));
    std::copy_n(plan_.head.data() + i * plan_.dim, plan_.dim, query);
    descent::spread_entries(difference, columns, query, width, key_gradient_.rows());
  }

  void add_gradient(const RowBlock& block) {
    const T* difference = scratch_.weights.data();
    T* sums = scratch_.row_sums.ensure(block.count * pairs_);
    descent::gather(difference, this->stride(), block.count,
                    plan_.keys.features() + block.col_begin, plan_.keys.width(), features_,
                    this->padded(block), sums, features_);
    T* queries = scratch_.queries.ensure(block.count * features_);
    std::fill_n(queries, block.count * features_, T(0));
    for (Index r = 0; r < block.count; ++r) {
      const Index i = row_at(block, r);
      std::copy_n(sums + r * features_, plan_.dim, plan_.query_gradient + i * plan_.dim);
      std::copy_n(plan_.head.data() + i * plan_.dim, plan_.dim, queries + r * features_);
    }
    descent::spread(difference, this->stride(), block.count, queries, features_, features_,
                    this->padded(block), key_gradient_.features() + block.col_begin,
                    key_gradient_.width());
  }

  // `m`: the row of M at its entries.
  void add_curvature(Index i, const Entries<T>& m) {
    const Index width = plan_.keys.key_width(), pairs_width = plan_.key_pairs.key_width();
    T* means = scratch_.row_means.ensure(width);
    T* seconds = scratch_.row_sums.ensure(pairs_width);
    descent::gather_entries(m.data, m.columns, plan_.keys.rows(), width, means);
    descent::gather_entries(m.data, m.columns, plan_.key_pairs.rows(), pairs_width, seconds);
    set_query_curvature(i, means, seconds);
    T* query = scratch_.query_pairs.ensure(pairs_width);
    std::fill_n(query, pairs_width, T(0));
    descent::pair_products(plan_.head.data() + i * plan_.dim, plan_.dim, query, 1);
    for (Index c = 0; c < m.count(); ++c) m.data[c] *= 1 - m.data[c];
    descent::spread_entries(m.data, m.columns, query, pairs_width, key_curvature_->rows());
  }

  // `means` and `seconds`: the means of the keys and of their pair products under row i of M.
  void set_query_curvature(Index i, const T* means, const T* seconds) {
    const Index count = descent::triangle(plan_.dim);
    T* h = plan_.query_curvature + i * count;
    descent::pair_products(means, plan_.dim, h, 1);
    for (Index t = 0; t < count; ++t) h[t] = seconds[t] - h[t];
  }

  void add_curvature(const RowBlock& block) {
    T* m = scratch_.logits.data();
    T* means = scratch_.row_means.ensure(block.count * features_);
    T* seconds = scratch_.row_sums.data();
    descent::gather(m, this->stride(), block.count, plan_.keys.features() + block.col_begin,
                    plan_.keys.width(), features_, this->padded(block), means, features_);
    descent::gather(m, this->stride(), block.count, plan_.key_pairs.features() + block.col_begin,
                    plan_.key_pairs.width(), pairs_, this->padded(block), seconds, pairs_);
    T* queries = scratch_.query_pairs.ensure(block.count * pairs_);
    std::fill_n(queries, block.count * pairs_, T(0));
    for (Index r = 0; r < block.count; ++r) {
      const Index i = row_at(block, r);
      set_query_curvature(i, means + r * features_, seconds + r * pairs_);
      descent::pair_products(plan_.head.data() + i * plan_.dim, plan_.dim, queries + r * pairs_, 1);
      T* row = m + r * this->stride();
      for (Index c = 0; c < this->padded(block); ++c) row[c] *= 1 - row[c];
    }
    descent::spread(m, this->stride(), block.count, queries, pairs_, pairs_, this->padded(block),
                    key_curvature_->features() + block.col_begin, key_curvature_->width());
  }

  const LossPlan<T>& plan_;
  std::span<const Index> rows_;
  KeyTable<T>& key_gradient_;
  KeyTable<T>* key_curvature_;
  LossScratch<T>& scratch_;
  Index features_, pairs_;
};

}  // namespace

template <class T>
Loss<T>::Loss(TargetRows<T>& target, const Mask& mask, Index dim, const Run& run)
    : target_(target),
      run_(run),
      mask_(mask),
      dim_(dim),
      chunks_(static_cast<std::size_t>(chunk_count<T>(target.rows(), target.cols(), dim))),
      row_loss_(static_cast<std::size_t>(target.rows())) {
  // Blocks of rows go to the chunks in turn, since under a causal mask later rows take longer.
  for (Index i = 0; i < target.rows(); ++i) {
    const auto tile = static_cast<std::size_t>(i / Blocking<T>::tile_rows);
    chunks_[tile % chunks_.size()].rows.push_back(i);
  }
  if (target.is_within(mask)) layouts_ = find_layouts();
  target.pack(layouts_, run);
}

template <class T>
LogitSource<T> Loss<T>::source(const T* head) const {
  const T* first_key = head ? head + queries() * dim_ : nullptr;
  LogitSource<T> source;
  source.mask = mask_;
  source.q = {head, 1, queries(), dim_, queries() * dim_, dim_};
  source.k = {first_key, 1, keys(), dim_, keys() * dim_, dim_};
  return source;
}

template <class T>
KeyLayouts Loss<T>::find_layouts() const {
  LogitSource<T> part = source(nullptr);
  KeyLayouts layouts{false, false};
  for (const Chunk& chunk : chunks_) {
    part.rows = std::span<const Index>(chunk.rows);
    layouts |= whole_row_layouts(part, run_);
  }
  return layouts;
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
                         keys_,
                         pairs_,
                         gradient.data(),
                         curvature ? curvature->data() : nullptr,
                         row_loss_.data()};
  const LogitSource<T> whole = source(head.data());
  whole.validate();
  const PackedKeys<T> packed(whole, 0, 1, run_, layouts_);
  parallel_tasks(static_cast<Index>(chunks_.size()), run_, [&] {
    return [&, scratch = std::make_unique<LossScratch<T>>(target_)](Index c) {
      Chunk& chunk = chunks_[static_cast<std::size_t>(c)];
      chunk.gradient.reset(keys(), dim_, layouts_);
      if (curvature) chunk.curvature.reset(keys(), descent::triangle(dim_), layouts_);
      LogitSource<T> part = whole;
      part.rows = std::span<const Index>(chunk.rows);
      stream_tiles(part, packed, Run{1, {}}, [&] {
        return LossFold<T>(plan, chunk.rows, chunk.gradient, curvature ? &chunk.curvature : nullptr,
                           *scratch);
      });
    };
  });
  add_chunks(&Chunk::gradient, gradient);
  if (curvature) add_chunks(&Chunk::curvature, *curvature);
  return std::accumulate(row_loss_.begin(), row_loss_.end(), 0.0);
}

template <class T>
void Loss<T>::lay_out_keys(const Matrix<T>& head, bool with_pairs) {
  keys_.reset(keys(), dim_, layouts_);
  keys_.set(head.bottomRows(keys()));
  if (!with_pairs) return;
  Matrix<T> products(1, descent::triangle(dim_));
  pairs_.reset(keys(), products.cols(), layouts_);
  for (Index j = 0; j < keys(); ++j) {
    descent::pair_products(head.row(queries() + j).data(), dim_, products.data(), 1);
    pairs_.set(products, j);
  }
}

// Adds the sums of all chunks, in order, to the rows of the keys.
template <class T>
void Loss<T>::add_chunks(KeyTable<T> Chunk::* part, Matrix<T>& out) const {
  const auto add = [&](Index first, Index end) {
    for (const Chunk& chunk : chunks_) {
      (chunk.*part).add_to(first, end, out.bottomRows(keys()));
    }
  };
  parallel_rows(keys(), run_, [&] { return add; }, 256);
}

template class Loss<float>;
template class Loss<double>;

}  // namespace headfit::soft
