#include "headfit/analysis/squared_mass.hpp"

#include "headfit/analysis/exact_sums.hpp"
#include "headfit/attention/softmax_row.hpp"
#include "headfit/logits/stream.hpp"

namespace headfit {
namespace {

template <class T>
class SquaredMassFold : public WholeRows<T> {
 public:
  SquaredMassFold(const LogitSource<T>& source, ExactSums& sums) : source_(source), sums_(sums) {}

  void entries(const RowBlock& block, Index, const Entries<T>& entries) {
    const double factor = to_weights(block.head, entries.data, entries.padded());
    for (Index c = 0; c < entries.count(); ++c) {
      const double weight = static_cast<double>(entries.data[c]) * factor;
      const double square = weight * weight;
      sums_.add(block.head * source_.k.rows + entries.column(c), &square, 1);
    }
  }

  void end(const RowBlock& block) {
    if (block.by_entries) return;
    const Index cols = block.col_end - block.col_begin;
    terms_.assign(static_cast<std::size_t>(std::max<Index>(0, cols)), 0.0);
    for (Index r = 0; r < block.count; ++r) {
      T* x = this->row(r);
      const double factor = to_weights(block.head, x, this->padded(block));
      for (Index c = 0; c < cols; ++c) {
        const double weight = static_cast<double>(x[c]) * factor;
        terms_[static_cast<std::size_t>(c)] += weight * weight;
      }
    }
    sums_.add(block.head * source_.k.rows + block.col_begin, terms_.data(), cols);
  }

 private:
  // Replaces a row of logits by exponentials. Returns what turns these into weights.
  double to_weights(Index head, T* x, Index padded) {
    const T max = row_max(x, padded);
    if (max == -std::numeric_limits<T>::infinity()) {
      std::fill_n(x, padded, T(0));
      return 0;
    }
    const Inverse<T> inverse = to_exponentials(x, padded, max, source_.sinks, source_.sink(head));
    return static_cast<double>(inverse.high) + static_cast<double>(inverse.low);
  }

  const LogitSource<T>& source_;
  ExactSums& sums_;
  std::vector<double> terms_;
};

}  // namespace

template <class T>
void squared_mass(const LogitSource<T>& source, double* out, const Run& run) {
  if (source.rows) throw InputError("squared weights are about all rows");
  ExactSums sums(source.q.count * source.k.rows, static_cast<double>(source.q.rows));
  stream_tiles(source, run, [&] { return SquaredMassFold<T>(source, sums); });
  sums.write(out);
}

template void squared_mass(const LogitSource<float>&, double*, const Run&);
template void squared_mass(const LogitSource<double>&, double*, const Run&);

}  // namespace headfit
