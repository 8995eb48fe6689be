#include "headfit/index/scores.hpp"

#include <cmath>

#include "headfit/attention/attention.hpp"
#include "headfit/base/linear_algebra.hpp"
#include "headfit/logits/pack.hpp"

namespace headfit {

using index::hidden;
using index::part_of;
namespace {

// Throws a NonFiniteError unless all numbers are finite; the rows of a head are below those of the
// one before, and row_at tells where they lie.
template <class RowAt>
void check_mapped(const char* name, const Matrix<float>& x, Index heads, const RowAt& row_at) {
  if (x.allFinite()) return;
  const Index rows = x.rows() / heads;
  for (Index i = 0; i < x.rows(); ++i) {
    for (Index c = 0; c < x.cols(); ++c) {
      if (!std::isfinite(x(i, c))) {
        throw_nonfinite(name, i / rows, heads, row_at(i % rows), c, x(i, c));
      }
    }
  }
}

}  // namespace

FreeKeys FreeKeys::of(const float* logits, const ColumnRange& seen, Index position,
                      const KeptAnyway& kept) {
  Index first = seen.begin;
  for (Index count = 0; first < seen.end && count < kept.first; ++first) {
    count += logits[first] != hidden;
  }
  const auto within = [&](Index column) { return std::clamp(column, first, seen.end); };
  return {seen,
          {ColumnRange{first, within(position - kept.window + 1)},
           ColumnRange{within(position + 1), seen.end}}};
}

void check_index_passage(const LogitSource<float>& passage) {
  passage.validate();
  for (const Heads<float>* x : {&passage.q, &passage.k}) {
    if (!std::holds_alternative<const float*>(x->data) || x->rotary.table) {
      throw InputError("passages must store float32, with positions applied");
    }
  }
  if (passage.bias.is_set()) throw InputError("an index knows no bias");
  if (!passage.mask.is_shared(passage.q.count, passage.k.rows)) {
    throw InputError("the query heads of a group must have the same mask");
  }
}

Index map_rows(const LogitSource<float>& passage) {
  return (passage.q.count + passage.k.count) * passage.q.cols;
}

void map_keys(const Heads<float>& keys, MatrixInput<float> maps, const IndexFormat& format,
              Matrix<float>& mapped, Vector<float>& scales) {
  mapped.setZero(keys.rows, maps.cols());
  for (Index g = 0; g < keys.count; ++g) {
    add_product<float>(keys[g], maps.middleRows(g * keys.cols, keys.cols), mapped);
  }
  check_mapped("K @ P_k", mapped, 1, [](Index row) { return row; });
  format.round_keys(mapped, scales);
}

void IndexProducts::open(const LogitSource<float>& passage, const Matrix<float>& maps,
                         const IndexOptions& options) {
  passage_ = passage;
  form_ = options.form;
  format_ = options.format;
  has_maps_ = maps.size() > 0;
  if (!has_maps_) return;
  query_maps_ = maps.topRows(passage.q.count * passage.q.cols);
  map_keys(passage.k, maps.bottomRows(passage.k.count * passage.q.cols), format_, keys_, scales_);
  originals_.resize(static_cast<std::size_t>(passage.q.count));
}

void IndexProducts::map_queries(std::span<const Index> rows) {
  rows_ = rows;
  count_ = static_cast<Index>(rows.size());
  const Index size = passage_.q.cols, dim = keys_.cols();
  queries_.setZero(heads() * count_, dim);
  for (Index h = 0; h < passage_.q.count; ++h) {
    Matrix<float>& original = originals_[static_cast<std::size_t>(h)];
    original.resize(count_, size);
    const MatrixView<float> q = passage_.q[h];
    for (Index r = 0; r < count_; ++r) original.row(r) = q.row(rows[static_cast<std::size_t>(r)]);
    const Index place = form_ == IndexForm::sum ? h * count_ : 0;
    add_product<float>(original, query_maps_.middleRows(h * size, size),
                       queries_.middleRows(place, count_));
  }
  check_mapped("Q @ P_q", queries_, heads(),
               [&](Index r) { return rows[static_cast<std::size_t>(r)]; });
  format_.round_queries(queries_, scales_);
}

void IndexProducts::read(std::span<const Index> rows) {
  LogitSource<float> source = passage_;
  if (has_maps_) {
    map_queries(rows);
    const Index dim = keys_.cols(), all = passage_.q.rows;
    // The stream finds the mapped queries where the rows of the passage have theirs.
    spread_.resize(heads() * all, dim);
    for (Index h = 0; h < heads(); ++h) {
      for (Index r = 0; r < count_; ++r) {
        spread_.row(h * all + rows[static_cast<std::size_t>(r)]) = queries_.row(h * count_ + r);
      }
    }
    source.q = {spread_.data(), heads(), all, dim, all * dim, dim};
    source.k = heads_of(keys_);
    source.group = heads();
    source.scale = 1;
  }
  rows_ = rows;
  count_ = static_cast<Index>(rows.size());
  source.softcap = 0;
  source.sinks = nullptr;
  source.rows = rows;
  products_.resize(heads() * count_, cols());
  attention_logits(source, {products_.data(), count_ * cols(), cols()}, Run{1, {}});
}

FreeKeys IndexProducts::free_keys(Index r, const KeptAnyway& kept) {
  const Index row = rows_[static_cast<std::size_t>(r)];
  const ColumnRange seen = passage_.mask.range(0, row, passage_.q.rows, cols());
  return FreeKeys::of(products(0, r), seen, row + cols() - passage_.q.rows, kept);
}

void IndexProducts::to_scores(Index r, const FreeKeys& free) {
  if (form_ == IndexForm::dot) return;
  const auto [begin, end] = free.seen;
  if (begin == end) return;
  for (Index h = 0; h < heads(); ++h) {
    auto x = part_of(products(h, r), begin, end - begin);
    const float most = x.maxCoeff();
    if (most == hidden) return;
    x -= most + std::log((x - most).exp().sum());
  }
  if (heads() == 1) return;
  float* score = products(0, r);
  for (Index c = begin; c < end; ++c) {
    float most = score[c];
    for (Index h = 1; h < heads(); ++h) most = std::max(most, products(h, r)[c]);
    if (most == hidden) continue;
    float sum = 0;
    for (Index h = 0; h < heads(); ++h) sum += std::exp(products(h, r)[c] - most);
    score[c] = most + std::log(sum);
  }
}

void read_mean_attention(const LogitSource<float>& passage, std::span<const Index> rows,
                         Matrix<float>& work, Matrix<float>& mean) {
  const auto count = static_cast<Index>(rows.size());
  const Index heads = passage.q.count, cols = passage.k.rows;
  LogitSource<float> source = passage;
  source.rows = rows;
  work.resize(heads * count, cols);
  attention_matrix(source, {work.data(), count * cols, cols}, Run{1, {}});
  mean = work.topRows(count);
  for (Index h = 1; h < heads; ++h) mean += work.middleRows(h * count, count);
  mean /= static_cast<float>(heads);
}

}  // namespace headfit
