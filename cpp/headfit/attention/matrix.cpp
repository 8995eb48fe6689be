// The matrix, of logits or of weights. Whole rows stay in cache until they are finished, and are
// written to memory once: all of their columns, or those of a sparse mask alone.
#include <array>

#include "headfit/attention/attention.hpp"
#include "headfit/attention/softmax_row.hpp"
#include "headfit/logits/stream.hpp"
#include "headfit/simd/write_row.hpp"

namespace headfit {
namespace {

template <class T>
class LogitFold : public WholeRows<T> {
 public:
  LogitFold(const OutHeads<T>& out, Index cols) : out_(out), cols_(cols) {}

  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    T* to = out_.row(block.head, block.first + r);
    std::fill(to, to + cols_, hidden);
    for (Index c = 0; c < entries.count(); ++c) to[entries.column(c)] = entries.data[c];
  }

  void end(const RowBlock& block) {
    if (block.by_entries) return;
    for (Index r = 0; r < block.count; ++r) {
      T* to = out_.row(block.head, block.first + r);
      std::fill(to, to + block.col_begin, hidden);
      std::copy_n(this->row(r), block.col_end - block.col_begin, to + block.col_begin);
      std::fill(to + block.col_end, to + cols_, hidden);
    }
  }

 private:
  static constexpr T hidden = -std::numeric_limits<T>::infinity();
  OutHeads<T> out_;
  Index cols_;
};

// Replaces the logits of the entries of a row by their weights.
template <class T>
void to_weights(const LogitSource<T>& source, Index head, const Entries<T>& entries) {
  T* x = entries.data;
  const T max = row_max(x, entries.padded());
  if (max == -std::numeric_limits<T>::infinity()) {
    std::fill_n(x, entries.padded(), T(0));
    return;
  }
  const Inverse<T> inverse =
      to_exponentials(x, entries.padded(), max, source.sinks, source.sink(head));
  for (Index c = 0; c < entries.padded(); c += simd::lanes<T>) {
    simd::store(x + c, inverse.times(simd::load(x + c)));
  }
}

template <class T, simd::Store how>
class SoftmaxFold : public WholeRows<T> {
 public:
  SoftmaxFold(const LogitSource<T>& source, const OutHeads<T>& out)
      : source_(source), out_(out), cols_(source.k.rows) {}

  void begin(const RowBlock&) { max_.fill(-std::numeric_limits<T>::infinity()); }

  void tile(const RowBlock&, const Tile<T>& tile) {
    for (Index r = 0; r < tile.count; ++r) {
      T& max = max_[static_cast<std::size_t>(r)];
      max = std::max(max, row_max(tile.row(r), tile.padded_cols()));
    }
  }

  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    T* to = out_.row(block.head, block.first + r);
    std::fill(to, to + cols_, T(0));
    to_weights(source_, block.head, entries);
    for (Index c = 0; c < entries.count(); ++c) to[entries.column(c)] = entries.data[c];
  }

  void end(const RowBlock& block) {
    if (block.by_entries) return;
    for (Index r = 0; r < block.count; ++r) {
      T* to = out_.row(block.head, block.first + r);
      write_zeros(to, block.col_begin);
      write_zeros(to + block.col_end, cols_ - block.col_end);
      write_weights(block, this->row(r), max_[static_cast<std::size_t>(r)], to + block.col_begin);
    }
    if (how == simd::Store::streamed) simd::finish_streams();
  }

 private:
  void write_zeros(T* to, Index count) {
    simd::write_row<how>(to, count, [](Index) { return simd::fill<T>(T(0)); });
  }

  void write_weights(const RowBlock& block, T* x, T max, T* to) {
    const Index cols = block.col_end - block.col_begin;
    if (max == -std::numeric_limits<T>::infinity()) return write_zeros(to, cols);
    const Inverse<T> inverse =
        to_exponentials(x, this->padded(block), max, source_.sinks, source_.sink(block.head));
    simd::write_row<how>(to, cols, [&](Index c) { return inverse.times(simd::load(x + c)); });
  }

  const LogitSource<T>& source_;
  OutHeads<T> out_;
  Index cols_;
  std::array<T, Blocking<T>::tile_rows> max_;
};

// Writes the columns of a sparse mask alone.
template <class T>
class SparseFold : public WholeRows<T> {
 public:
  SparseFold(const LogitSource<T>& source, EntryValues what, std::span<const Offset> starts, T* out)
      : source_(source), what_(what), starts_(starts), out_(out) {}

  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    if (what_ == EntryValues::weights) to_weights(source_, block.head, entries);
    const Offset start = starts_[static_cast<std::size_t>(block.first + r)];
    std::copy_n(entries.data, entries.count(), out_ + block.head * starts_.back() + start);
  }

  void end(const RowBlock& block) {
    if (block.by_entries) return;
    for (Index r = 0; r < block.count; ++r) {
      const auto columns = source_.mask.sparse_row(source_.row_at(block.first + r));
      Entries<T> picked{nullptr, columns};
      picked.data = picked_.ensure(picked.padded());
      std::fill_n(picked.data, picked.padded(), -std::numeric_limits<T>::infinity());
      const T* x = this->row(r);
      for (Index c = 0; c < picked.count(); ++c) {
        const Index col = picked.column(c);
        if (col >= block.col_begin && col < block.col_end)
          picked.data[c] = x[col - block.col_begin];
      }
      entries(block, r, picked);
    }
  }

 private:
  const LogitSource<T>& source_;
  EntryValues what_;
  std::span<const Offset> starts_;
  T* out_;
  Buffer<T> picked_;
};

template <class T, simd::Store how>
void write_matrix(const LogitSource<T>& source, const OutHeads<T>& out, const Run& run) {
  stream_tiles(source, run, [&] { return SoftmaxFold<T, how>(source, out); });
}

}  // namespace

template <class T>
void attention_logits(const LogitSource<T>& source, const OutHeads<T>& out, const Run& run) {
  const Index cols = source.k.rows;
  stream_tiles(source, run, [&] { return LogitFold<T>(out, cols); });
}

template <class T>
void attention_matrix(const LogitSource<T>& source, const OutHeads<T>& out, const Run& run) {
  const Index entries = source.q.count * source.row_count() * source.k.rows;
  if (!out.is_fresh && entries * Index(sizeof(T)) > simd::streamed_bytes) {
    write_matrix<T, simd::Store::streamed>(source, out, run);
  } else {
    write_matrix<T, simd::Store::cached>(source, out, run);
  }
}

template <class T>
std::vector<Offset> entry_starts(const LogitSource<T>& source) {
  if (!source.mask.sparse_offsets) {
    throw InputError("only an attention with a sparse mask has a sparse matrix");
  }
  std::vector<Offset> starts{0};
  for (Index place = 0; place < source.row_count(); ++place) {
    const auto columns = source.mask.sparse_row(source.row_at(place));
    starts.push_back(starts.back() + static_cast<Offset>(columns.size()));
  }
  return starts;
}

template <class T>
void attention_entries(const LogitSource<T>& source, EntryValues what, T* out, const Run& run) {
  source.validate();
  const std::vector<Offset> starts = entry_starts(source);
  stream_tiles(source, run, [&] { return SparseFold<T>(source, what, starts, out); });
}

template std::vector<Offset> entry_starts(const LogitSource<float>&);
template std::vector<Offset> entry_starts(const LogitSource<double>&);
template void attention_entries(const LogitSource<float>&, EntryValues, float*, const Run&);
template void attention_entries(const LogitSource<double>&, EntryValues, double*, const Run&);
template void attention_logits(const LogitSource<float>&, const OutHeads<float>&, const Run&);
template void attention_logits(const LogitSource<double>&, const OutHeads<double>&, const Run&);
template void attention_matrix(const LogitSource<float>&, const OutHeads<float>&, const Run&);
template void attention_matrix(const LogitSource<double>&, const OutHeads<double>&, const Run&);

}  // namespace headfit
