// The folds of maps. Rows of the smaller head lie side by side in memory, and weights of them sum up
// keys for each query, and queries for each key.
#pragma once

#include "headfit/compress/compress.hpp"
#include "headfit/descent/key_table.hpp"
#include "headfit/descent/row_divergence.hpp"

namespace headfit::compress {

// The exponentials of rows of logits, and the sum over these rows of the logarithms of their sums.
template <class T>
class Partition {
 public:
  // A sink is one more logit of every row; -inf for none.
  explicit Partition(double sink) : sink_(sink) {}

  // Replaces a row of logits, padded with -inf to whole vectors, by exponentials without a common
  // factor. Returns what turns them into weights: 1 divided by their sum, or 0 for a row without an
  // allowed column, whose entries become 0.
  T to_exponentials(T* x, Index cols) {
    constexpr T none = -std::numeric_limits<T>::infinity();
    const T max = row_max(x, cols);
    if (max == none) {
      std::fill(x, x + cols, T(0));
      return 0;
    }
    const T top = std::max(max, static_cast<T>(sink_));
    const auto shift = simd::RowShift<T>::at(top);
    double sum = descent::to_exponentials(x, cols, top, shift).exponentials;
    if (static_cast<T>(sink_) != none) sum += sink_term(sink_, shift);
    add_log(sum, shift);
    top_logits_ += std::abs(static_cast<double>(top));
    return static_cast<T>(1 / sum);
  }

  // The sum of the logarithms; rows without an allowed column are left out.
  double log_sums() const { return logs_ + std::log(product_) + exponents_ * std::numbers::ln2; }
  // The sum of the absolute values of the largest logits.
  double top_logits() const { return top_logits_; }

 private:
  // Sums whose logarithms are taken at once: even for rows of 2^40 columns their product is finite.
  static constexpr int at_once = 16;

  void add_log(double sum, const simd::RowShift<T>& shift) {
    logs_ += static_cast<double>(shift.subtract);
    exponents_ += static_cast<double>(shift.exponent);
    product_ *= sum;
    if (++factors_ < at_once) return;
    logs_ += std::log(product_);
    product_ = 1;
    factors_ = 0;
  }

  double sink_;
  double logs_ = 0, exponents_ = 0, product_ = 1, top_logits_ = 0;
  int factors_ = 0;
};

// The queries and keys of a unit, what is summed up for them, and scratch memory. Each thread has one
// of its own.
template <class T>
struct UnitWork {
  Index dim = 0;
  bool with_gradient = false;
  bool by_queries = true;  // whether the gradient by the queries is wanted too
  Buffer<T> queries, keys;  // row by row
  RowsInMemory<T> query_rows{};  // of all rows of the passage
  descent::KeyTable<T> key_features;
  Buffer<T> key_sums;  // of each query, row by row, for the rows of the unit
  descent::KeyTable<T> query_sums;  // of each key
  Buffer<T> logits, weights, factors, slopes, sums, features;
};

// What the folds of maps share: how weights of the rows become a gradient.
template <class T>
class UnitFold : public WholeRows<T, Buffer<T>&> {
 protected:
  UnitFold(const LogitSource<T>& source, UnitWork<T>& work)
      : WholeRows<T, Buffer<T>&>(work.logits), source_(source), work_(work) {}

  // Adds to the gradient by queries and keys. That by the products of row r is factors[r] times that
  // row of `slopes`.
  void add_gradient(const RowBlock& block, const T* slopes, const T* factors) {
    if (work_.by_queries) gather_keys(block, slopes, factors);
    spread_queries(block, slopes, factors);
  }

  // Writes for each row the sum of the keys, times weights[r * stride + c] * factors[r].
  void gather_keys(const RowBlock& block, const T* weights, const T* factors) {
    const Index dim = work_.dim, features = descent::feature_count(dim);
    T* sums = work_.sums.ensure(block.count * features);
    const auto& keys = work_.key_features;
    descent::gather(weights, this->stride(), block.count, keys.features() + block.col_begin,
                    keys.width(), features, this->padded(block), sums, features);
    T* to = work_.key_sums.data() + block.first * dim;
    for (Index r = 0; r < block.count; ++r) {
      for (Index f = 0; f < dim; ++f) to[r * dim + f] = factors[r] * sums[r * features + f];
    }
  }

  // Adds to each key the sum of the queries, with the same weights.
  void spread_queries(const RowBlock& block, const T* weights, const T* factors) {
    const Index dim = work_.dim, features = descent::feature_count(dim);
    T* queries = work_.features.ensure(block.count * features);
    std::fill_n(queries, block.count * features, T(0));
    for (Index r = 0; r < block.count; ++r) {
      const T* query = query_of(block, r);
      for (Index f = 0; f < dim; ++f) queries[r * features + f] = factors[r] * query[f];
    }
    descent::spread(weights, this->stride(), block.count, queries, features, features,
                    this->padded(block), work_.query_sums.features() + block.col_begin,
                    work_.query_sums.width());
  }

  // The same for a row by entries: what its weights, times a factor, make of keys and queries.
  void add_gradient(const RowBlock& block, Index r, const Entries<T>& weights, T factor) {
    if (work_.by_queries) gather_keys(block, r, weights, factor);
    spread_queries(block, r, weights, factor);
  }

  void gather_keys(const RowBlock& block, Index r, const Entries<T>& weights, T factor) {
    const auto& keys = work_.key_features;
    T* sums = work_.sums.ensure(keys.key_width());
    descent::gather_entries(weights.data, weights.columns, keys.rows(), keys.key_width(), sums);
    T* to = work_.key_sums.data() + (block.first + r) * work_.dim;
    for (Index f = 0; f < work_.dim; ++f) to[f] = factor * sums[f];
  }

  void spread_queries(const RowBlock& block, Index r, const Entries<T>& weights, T factor) {
    const Index width = work_.query_sums.key_width();
    const T* from = query_of(block, r);
    T* query = work_.features.ensure(width);
    std::fill_n(query, width, T(0));
    for (Index f = 0; f < work_.dim; ++f) query[f] = factor * from[f];
    descent::spread_entries(weights.data, weights.columns, query, width, work_.query_sums.rows());
  }

  const T* query_of(const RowBlock& block, Index r) const {
    return work_.query_rows.row(source_.row_at(block.first + r));
  }

  const LogitSource<T>& source_;
  UnitWork<T>& work_;
};

// The fold for heads without a soft-cap: the logarithms of the sums of exponentials of the smaller
// head. With what was measured once of the original (`Measured`) they are the divergence.
template <class T>
class PartitionFold : public UnitFold<T> {
 public:
  // Adds to `log_sums` the logarithms of the rows, and to the gradient of the work that of their sum.
  PartitionFold(const LogitSource<T>& source, UnitWork<T>& work, double& log_sums)
      : UnitFold<T>(source, work), log_sums_(log_sums), partition_(source.sink(0)) {}

  void begin(const RowBlock&) { partition_ = Partition<T>(this->source_.sink(0)); }

  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    const T factor = partition_.to_exponentials(entries.data, entries.padded());
    if (this->work_.with_gradient) this->add_gradient(block, r, entries, factor);
  }

  void end(const RowBlock& block) {
    if (block.by_entries) {
      log_sums_ += partition_.log_sums();
      return;
    }
    // Nothing is allowed, and the gradient is zero already.
    if (block.col_begin >= block.col_end) return;
    T* factors = this->work_.factors.ensure(block.count);
    for (Index r = 0; r < block.count; ++r) {
      factors[r] = partition_.to_exponentials(this->row(r), this->padded(block));
    }
    log_sums_ += partition_.log_sums();
    if (this->work_.with_gradient) this->add_gradient(block, this->row(0), factors);
  }

 private:
  double& log_sums_;
  Partition<T> partition_;  // of the current block
};

// The fold that computes rows of the original again, and their divergence: for heads with a soft-cap,
// and for losses so small that the difference of two logarithms loses them to rounding.
template <class T>
class TargetFold : public UnitFold<T> {
 public:
  TargetFold(const LogitSource<T>& source, typename soft::TargetRows<T>::Reader& reader,
             const soft::TargetRows<T>& target, UnitWork<T>& work, double& loss)
      : UnitFold<T>(source, work), reader_(reader), target_(target), loss_(loss) {}

  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    const Index row = this->source_.row_at(block.first + r);
    const Entries<T> weights{reader_.read(row, entries.columns), entries.columns};
    settle(row, entries.data, weights.data, entries.count(),
           [&](Index c) { return entries.column(c); });
    if (this->work_.with_gradient) this->add_gradient(block, r, weights, T(1));
  }

  void end(const RowBlock& block) {
    // Nothing is allowed, and the gradient is zero already.
    if (block.by_entries || block.col_begin >= block.col_end) return;
    T* weights = this->work_.weights.ensure(this->size(block));
    reader_.read(block, *this->source_.rows, weights, this->stride());
    for (Index r = 0; r < block.count; ++r) {
      settle(this->source_.row_at(block.first + r), this->row(r), weights + r * this->stride(),
             block.col_end - block.col_begin, [&](Index c) { return block.col_begin + c; });
    }
    if (!this->work_.with_gradient) return;
    T* factors = this->work_.factors.ensure(block.count);
    std::fill_n(factors, block.count, T(1));
    this->add_gradient(block, weights, factors);
  }

 private:
  // Turns a row of the target into the gradient of the divergence by the products of the row. The
  // first `count` of its logits x, which are padded, stand in the columns place(0), place(1) ...
  template <class Place>
  void settle(Index row, T* x, T* a, Index count, const Place& place) {
    const Index cols = round_up(count, simd::lanes<T>);
    const bool capped = this->work_.with_gradient && this->source_.softcap > 0;
    if (capped) find_slopes(row, x, count, place);
    loss_ += descent::to_difference(x, a, cols, target_.entropy(row),
                                    {this->source_.sink(0), target_.log_sink(row)});
    if (!capped) return;
    const T* slopes = this->work_.slopes.data();
    for (Index c = 0; c < cols; ++c) a[c] *= slopes[c];
  }

  // The derivatives of soft-capped logits by the products, 1 - (capped / softcap)^2.
  template <class Place>
  void find_slopes(Index row, const T* x, Index count, const Place& place) {
    const Index cols = round_up(count, simd::lanes<T>);
    T* slopes = this->work_.slopes.ensure(cols);
    std::copy_n(x, cols, slopes);
    const Bias& bias = this->source_.bias;
    if (bias.is_set()) {
      std::visit([&](const auto* first) {
        const auto* from = first + row * bias.row;
        for (Index c = 0; c < count; ++c) slopes[c] -= as<T>(from[place(c) * bias.col]);
      }, bias.data);
    }
    const T inverse = static_cast<T>(1 / this->source_.softcap);
    for (Index c = 0; c < cols; ++c) {
      const T share = slopes[c] * inverse;
      // Where the mask or the bias is -inf, the difference is zero, and so is what it gets here.
      slopes[c] = std::isfinite(share) ? std::max(T(0), 1 - share * share) : T(0);
    }
  }

  typename soft::TargetRows<T>::Reader& reader_;
  const soft::TargetRows<T>& target_;
  double& loss_;
};

// Streams the rows of a source through a `TargetFold`.
template <class T>
void diverge_from(const soft::TargetRows<T>& target, const LogitSource<T>& source,
                  const PackedKeys<T>& keys, UnitWork<T>& work, double& loss);

}  // namespace headfit::compress
