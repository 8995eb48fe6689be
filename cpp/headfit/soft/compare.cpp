#include "headfit/soft/compare.hpp"

#include <memory>
#include <numeric>

#include "headfit/attention/softmax_row.hpp"
#include "headfit/logits/stream.hpp"
#include "headfit/soft/target_rows.hpp"

namespace headfit {
namespace {

using soft::TargetRows;

class DistanceFold : public WholeRows<double> {
 public:
  DistanceFold(const TargetRows<double>& target, std::span<const Index> rows,
               const LogitSource<double>& attention, SoftDistances& out)
      : target_(target),
        reader_(std::make_unique<TargetRows<double>::Reader>(target)),
        rows_(rows),
        sink_(attention.sink(0)),
        out_(out) {}

  // The target has nothing outside the entries.
  void entries(const RowBlock& block, Index r, const Entries<double>& entries) {
    const Index row = rows_[static_cast<std::size_t>(block.first + r)];
    double* a = reader_->read(row, entries.columns);
    compare(row, Row(a, entries.count()), entries.data, {0, entries.count()});
  }

  void end(const RowBlock& block) {
    if (block.by_entries) return;
    // The target's mask may allow other columns than that of the attention.
    RowBlock both{0, block.first, block.count, target_.cols(), 0};
    const auto include = [&](const ColumnRange& columns) {
      if (columns.begin >= columns.end) return;
      both.col_begin = std::min(both.col_begin, columns.begin / B::panel * B::panel);
      both.col_end = std::max(both.col_end, columns.end);
    };
    include({block.col_begin, block.col_end});
    for (Index r = 0; r < block.count; ++r) include(target_.columns(block.first + r));
    both.col_begin = std::min(both.col_begin, both.col_end);
    const Index first = std::max(block.col_begin, both.col_begin) - both.col_begin;
    const Index cols = both.col_end - both.col_begin, stride = round_up(cols, B::panel);
    double* a = weights_.ensure(round_up(block.count, B::row_group) * stride);
    reader_->read(both, rows_, a, stride);
    for (Index r = 0; r < block.count; ++r) {
      compare(block.first + r, Row(a + r * stride, cols), row(r),
              {first, first + block.col_end - block.col_begin});
    }
  }

 private:
  using B = Blocking<double>;
  using Row = Eigen::Map<Eigen::Array<double, Eigen::Dynamic, 1>>;

  // Compares a row of logits x with a row of the target, `a`. The logits are those of the places
  // `known` of `a`; they are -inf in others.
  void compare(Index row, Row a, double* x, const ColumnRange& known) {
    const auto at = static_cast<std::size_t>(row);
    const Index cols = known.end - known.begin, padded = round_up(cols, simd::lanes<double>);
    const double max = cols > 0 ? row_max(x, padded) : -infinity;
    const Row inside(a.data() + known.begin, cols);
    const double outside = a.head(known.begin).sum() + a.tail(a.size() - known.end).sum();
    // What a sink takes counts as the weight of one more key.
    const double log_sink = target_.log_sink(row), of_sink = std::exp(log_sink);
    if (max == -infinity) {
      const double all = a.sum() + of_sink;
      out_.divergence[at] = all > 0 ? infinity : 0;
      out_.variation[at] = all / 2;
      return;
    }
    const auto shift = simd::RowShift<double>::at(max);
    Row s(x, cols);
    terms_ = s;
    const double sum = exp_sum<double, Exponentials::keep>(x, padded, shift);
    const auto whole = SumWithSink::of(max + std::log(sum / exp_of(max, shift)), sink_);
    terms_ = (inside > 0).select(inside * (inside.log() - terms_ + whole.log_sum), 0.0);
    const double own_log_sink = sink_ - whole.log_sum;
    const double sink_term = of_sink > 0 ? of_sink * (log_sink - own_log_sink) : 0.0;
    out_.divergence[at] = outside > 0 ? infinity : std::max(0.0, terms_.sum() + sink_term);
    out_.variation[at] = ((inside - s / sum * whole.key_mass).abs().sum() + outside +
                          std::abs(of_sink - std::exp(own_log_sink))) /
                         2;
  }

  static constexpr double infinity = std::numeric_limits<double>::infinity();

  const TargetRows<double>& target_;
  std::unique_ptr<TargetRows<double>::Reader> reader_;  // it cannot be moved
  std::span<const Index> rows_;
  double sink_;
  SoftDistances& out_;
  Buffer<double> weights_;
  Eigen::Array<double, Eigen::Dynamic, 1> terms_;
};

}  // namespace

SoftDistances compare_soft(const SoftTarget<double>& target, const LogitSource<double>& attention,
                           const Run& run) {
  attention.validate();
  if (attention.q.count != 1) throw InputError("the attention must be one head");
  if (attention.q.rows != target.rows() || attention.k.rows != target.cols()) {
    throw InputError("target and attention must have one shape; got ", target.rows(), " x ",
                     target.cols(), " and ", attention.q.rows, " x ", attention.k.rows);
  }
  TargetRows<double> rows(target, run);
  const KeyLayouts layouts =
      rows.is_within(attention.mask) ? whole_row_layouts(attention, run) : KeyLayouts{};
  rows.pack(layouts, run);
  const PackedKeys<double> keys(attention, 0, 1, run, layouts);
  std::vector<Index> all(static_cast<std::size_t>(target.rows()));
  std::iota(all.begin(), all.end(), Index(0));
  SoftDistances out(target.rows());
  for (Index i = 0; i < target.rows(); ++i)
    out.attends[static_cast<std::size_t>(i)] = rows.attends(i);
  stream_tiles(attention, keys, run, [&] { return DistanceFold(rows, all, attention, out); });
  return out;
}

std::vector<SoftDistances> compare_heads(std::span<const LogitSource<double>> originals,
                                         std::span<const LogitSource<double>> smaller,
                                         const Run& run) {
  if (originals.size() != smaller.size()) {
    throw InputError("there must be as many smaller heads as originals");
  }
  std::vector<std::pair<std::size_t, Index>> pairs;
  for (std::size_t i = 0; i < originals.size(); ++i) {
    originals[i].validate();
    smaller[i].validate();
    if (originals[i].q.count != smaller[i].q.count) {
      throw InputError("a smaller head must have as many query heads as its original");
    }
    for (Index h = 0; h < originals[i].q.count; ++h) pairs.emplace_back(i, h);
  }
  std::vector<SoftDistances> found(pairs.size(), SoftDistances(0));
  const auto compare = [&](Index p, const Run& inner) {
    const auto& [i, head] = pairs[static_cast<std::size_t>(p)];
    SoftTarget<double> target;
    target.attention = query_head_of(originals[i], head);
    found[static_cast<std::size_t>(p)] =
        compare_soft(target, query_head_of(smaller[i], head), inner);
  };
  // Threads go over the pairs, or over the rows of each if there are fewer pairs than threads.
  const auto count = static_cast<Index>(pairs.size());
  if (count < run.thread_count(count + 1)) {
    for (Index p = 0; p < count; ++p) compare(p, run);
  } else {
    parallel_for(count, run, [&](Index p) { compare(p, Run{1, {}}); });
  }
  return found;
}

}  // namespace headfit
