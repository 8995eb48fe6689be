// What the folds of maps share: the rows of a block lie side by side in memory, and weights of them
// sum up keys for each query, and queries for each key.
#pragma once

#include "headfit/compress/compress.hpp"
#include "headfit/logits/whole_rows.hpp"
#include "headfit/soft/feature_sums.hpp"

namespace headfit::compress {

// The queries and keys of a unit, what is summed up for them, and scratch memory. Each thread has one
// of its own.
template <class T>
struct UnitWork {
  Index dim = 0, width = 0;  // width: the padded number of keys
  bool with_gradient = false;
  Buffer<T> queries, keys;  // row by row
  Buffer<T> key_features;  // feature by feature, `width` keys each
  Buffer<T> key_sums;  // of each query, row by row, for the rows of the unit
  Buffer<T> query_sums;  // of each key, as key_features
  Buffer<T> logits, weights, factors, slopes, sums, features;
};

template <class T>
class UnitFold {
 public:
  static Index block_rows(const LogitSource<T>& source) {
    return whole_row_block<T>(source.k.rows);
  }
  T* destination(const RowBlock& block, Index stride) {
    stride_ = stride;
    return work_.logits.ensure(size(block));
  }
  void begin(const RowBlock&) {}
  void tile(const RowBlock&, const Tile<T>&) {}

 protected:
  UnitFold(const LogitSource<T>& source, UnitWork<T>& work) : source_(source), work_(work) {}

  Index size(const RowBlock& block) const {
    return round_up(block.count, Blocking<T>::row_group) * stride_;
  }
  static Index padded(const RowBlock& block) {
    return round_up(block.col_end - block.col_begin, simd::lanes<T>);
  }
  T* logits(Index r) { return work_.logits.data() + r * stride_; }

  // Adds to the gradient by queries and keys. That by the products of row r is factors[r] times that
  // row of `slopes`.
  void add_gradient(const RowBlock& block, const T* slopes, const T* factors) {
    gather_keys(block, slopes, factors);
    spread_queries(block, slopes, factors);
  }

  // Writes for each row the sum of the keys, times weights[r * stride + c] * factors[r].
  void gather_keys(const RowBlock& block, const T* weights, const T* factors) {
    const Index dim = work_.dim, features = soft::feature_count(dim);
    T* sums = work_.sums.ensure(block.count * features);
    soft::gather(weights, stride_, block.count, work_.key_features.data() + block.col_begin,
                 work_.width, features, padded(block), sums, features);
    T* to = work_.key_sums.data() + block.first * dim;
    for (Index r = 0; r < block.count; ++r) {
      for (Index f = 0; f < dim; ++f) to[r * dim + f] = factors[r] * sums[r * features + f];
    }
  }

  // Adds to each key the sum of the queries, with the same weights.
  void spread_queries(const RowBlock& block, const T* weights, const T* factors) {
    const Index dim = work_.dim, features = soft::feature_count(dim);
    T* queries = work_.features.ensure(block.count * features);
    std::fill_n(queries, block.count * features, T(0));
    for (Index r = 0; r < block.count; ++r) {
      const T* query = work_.queries.data() + source_.row_at(block.first + r) * dim;
      for (Index f = 0; f < dim; ++f) queries[r * features + f] = factors[r] * query[f];
    }
    soft::spread(weights, stride_, block.count, queries, features, features, padded(block),
                 work_.query_sums.data() + block.col_begin, work_.width);
  }

  const LogitSource<T>& source_;
  UnitWork<T>& work_;
  Index stride_ = 0;
};

}  // namespace headfit::compress
