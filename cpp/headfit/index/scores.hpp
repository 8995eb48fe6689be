// The scores by which an index finds keys, in one passage.
//
// An index is for a group of query heads and the key heads that these read: one, or all of a layer.
// Maps A_h (D x d) for each query head and B_g (D x d) for each key head make products
// q_h A_h . sum_g k_g B_g. In the form `sum`, the score of a key is the logarithm of the sum over query
// heads of the softmax of these products over all visible keys; in the form `dot` it is the sum of the
// products themselves: one product with the sum of the queries.
#pragma once

#include <array>

#include "headfit/attention/index_form.hpp"
#include "headfit/base/linear_algebra.hpp"
#include "headfit/index/format.hpp"
#include "headfit/logits/source.hpp"

namespace headfit {
namespace index {

// The product of a key that is masked.
inline constexpr float hidden = -std::numeric_limits<float>::infinity();
inline constexpr Index chunk_rows = 32;  // that are computed at a time

inline Eigen::Map<Eigen::ArrayXf> part_of(float* row, Index first, Index count) {
  return {row + first, count};
}

}  // namespace index

// The keys of a row that are attended to whatever their scores are: the first ones that it sees, and
// those at its own position and before it, so many in all.
struct KeptAnyway {
  Index first = 4, window = 32;
  Index count() const { return first + window; }
};

// The other keys that a row sees lie in two ranges. Columns within them may be masked.
struct FreeKeys {
  ColumnRange seen;  // all columns that are not masked lie in here
  std::array<ColumnRange, 2> parts;

  // `logits` are -inf where a column is masked.
  static FreeKeys of(const float* logits, const ColumnRange& seen, Index position,
                     const KeptAnyway& kept);

  // Calls work(first, count) for each range that is not empty.
  template <class Work>
  void for_each(const Work& work) const {
    for (const ColumnRange& part : parts) {
      if (part.begin < part.end) work(part.begin, part.end - part.begin);
    }
  }
  bool has(Index column) const {
    return std::ranges::any_of(parts, [&](const ColumnRange& p) {
      return p.begin <= column && column < p.end;
    });
  }
  // Calls work(column) for each column that is seen and not free.
  template <class Work>
  void for_kept(const Work& work) const {
    for (Index c = seen.begin; c < parts[0].begin; ++c) work(c);
    for (Index c = parts[0].end; c < parts[1].begin; ++c) work(c);
  }
};

struct IndexOptions {
  IndexForm form = IndexForm::sum;
  IndexFormat format;
  KeptAnyway kept;
};

// A group of query heads and their key heads, with positions applied: throws an InputError unless its
// heads store float32 and have the same mask, and no bias.
void check_index_passage(const LogitSource<float>& passage);
// The rows of the maps for all query heads and all key heads.
Index map_rows(const LogitSource<float>& passage);

// The products of keys with the maps of their key heads, one below the other, summed over key heads
// and rounded to what an index stores; and the scales of the rows. Throws a NonFiniteError for what
// overflows.
void map_keys(const Heads<float>& keys, MatrixInput<float> maps, const IndexFormat& format,
              Matrix<float>& mapped, Vector<float>& scales);

// The products of an index for some rows at a time. Each thread has an object of its own.
class IndexProducts {
 public:
  // `maps`: those of the query heads, one below the other, and below them those of the key heads. None
  // at all: the products are the logits of the passage, without its soft-cap and sinks.
  void open(const LogitSource<float>& passage, const Matrix<float>& maps,
            const IndexOptions& options);
  // Maps and rounds the queries of some rows. The rows must live until the next call.
  void map_queries(std::span<const Index> rows);
  // The same, and computes the products of the rows; masked ones are -inf.
  void read(std::span<const Index> rows);

  const LogitSource<float>& passage() const { return passage_; }
  Index heads() const { return form_ == IndexForm::sum ? passage_.q.count : 1; }
  Index cols() const { return passage_.k.rows; }
  // The products of row r of those that were read.
  float* products(Index head, Index r) { return products_.row(head * count_ + r).data(); }
  // Those of all heads, one below the other, a row for each row that was read.
  Matrix<float>& products() { return products_; }
  FreeKeys free_keys(Index r, const KeptAnyway& kept);
  // Replaces the products of row r by scores, in those of the first head.
  void to_scores(Index r, const FreeKeys& free);

  const Matrix<float>& keys() const { return keys_; }  // mapped and rounded
  const Matrix<float>& queries() const { return queries_; }  // the same, of the rows, by heads
  const Matrix<float>& originals(Index head) const {
    return originals_[static_cast<std::size_t>(head)];
  }

 private:
  LogitSource<float> passage_;
  IndexForm form_ = IndexForm::sum;
  IndexFormat format_;
  bool has_maps_ = false;
  Matrix<float> query_maps_, keys_, queries_, spread_, products_;
  std::vector<Matrix<float>> originals_;  // the queries of the rows, before maps
  Vector<float> scales_;
  std::span<const Index> rows_;
  Index count_ = 0;
};

// The mean of the attention of the query heads in some rows; `work` is memory.
void read_mean_attention(const LogitSource<float>& passage, std::span<const Index> rows,
                         Matrix<float>& work, Matrix<float>& mean);

}  // namespace headfit
