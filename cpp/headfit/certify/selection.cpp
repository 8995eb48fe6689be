// The scores of the index are streamed in double, in whole rows: those of its first query, and of the
// same rows those of its other queries and the logits of each query head are asked for. So every row
// is chosen from once, for all heads.
#include "headfit/certify/selection.hpp"

#include <memory>
#include <optional>

#include "headfit/base/errors.hpp"
#include "headfit/certify/kept_mass.hpp"
#include "headfit/certify/product_scores.hpp"
#include "headfit/certify/selected_keys.hpp"
#include "headfit/certify/summed_scores.hpp"
#include "headfit/certify/support.hpp"
#include "headfit/logits/stream.hpp"

namespace headfit {

SelectionRows::SelectionRows(Index heads, Index rows)
    : least(Vector<double>::Ones(heads * rows)),
      most(Vector<double>::Ones(heads * rows)),
      verdict(static_cast<std::size_t>(heads * rows), Verdict::holds),
      sure(static_cast<std::size_t>(rows), 0),
      selected(static_cast<std::size_t>(rows), 0) {}

namespace {

using detail::Choice;
using detail::ChoiceCounts;

// What all threads read and where they write; each row is written by one.
struct Selection {
  const SelectionOptions& options;
  Vector<double> key_norms;  // of the index, bounds from above
  double key_norm_max = 0;
  double head_key_norm_max = 0;  // of the heads' keys
  double softcap = 0;
  std::vector<double> sinks;  // of each query head, -inf for none
  Column* columns;
  SelectionRows out;
  std::vector<char> open;  // rows that logits in double may decide
};

// What one pass reads: each query head of the index as a head of its own, and the heads whose logits
// are in T.
template <class T>
struct Pass {
  const std::vector<LogitSource<double>>& index;
  const PackedKeys<double>& index_keys;
  const LogitSource<T>& heads;
  const PackedKeys<T>& keys;

  const LogitSource<double>& streamed() const { return index.front(); }
};

template <class T>
class SelectionFold : public WholeRows<double> {
 public:
  SelectionFold(const Pass<T>& pass, Selection& selection)
      : pass_(pass),
        all_(selection),
        reader_(std::make_unique<LogitReader<T>>(pass.heads, pass.keys)),
        queries_(pass.heads.q),
        index_keys_(pass.streamed().k),
        chosen_(selection.options) {
    for (const LogitSource<double>& head : pass.index) {
      index_queries_.emplace_back(head.q);
      index_readers_.push_back(std::make_unique<LogitReader<double>>(head, pass.index_keys));
    }
  }

  void entries(const RowBlock& block, Index r, const Entries<double>& scores) {
    const Index row = pass_.streamed().row_at(block.first + r), count = scores.count();
    const auto place = [&](Index c) { return scores.column(c); };
    choices_.resize(static_cast<std::size_t>(count));
    const Index seen = is_sum() ? to_softmax(scores.data, count) : 0;
    for (Index h = 1; h < index_heads(); ++h) {
      add_softmax(reader_of(h).read(0, row, scores.columns).data, count, scores.data);
    }
    const ChoiceCounts counts = choose(row, scores.data, count, seen, place, choices_.data());
    for (Index h = 0; h < pass_.heads.q.count; ++h) {
      const Entries<T> logits = reader_->read(h, row, scores.columns);
      judge(h, row, logits.data, choices_.data(), count, counts);
    }
  }

  void end(const RowBlock& block) {
    if (block.by_entries || block.col_begin >= block.col_end) return;
    const Index count = block.col_end - block.col_begin;
    const auto place = [&](Index c) { return block.col_begin + c; };
    choices_.resize(static_cast<std::size_t>(block.count * count));
    counts_.resize(static_cast<std::size_t>(block.count));
    seen_.resize(static_cast<std::size_t>(block.count));
    if (is_sum()) sum_up(block, count);
    for (Index r = 0; r < block.count; ++r) {
      const auto at = static_cast<std::size_t>(r);
      counts_[at] = choose(pass_.streamed().row_at(block.first + r), row(r), count, seen_[at],
                           place, choices_.data() + r * count);
    }
    // The panels of another type may have another width.
    RowBlock part{0, block.first, block.count, 0, block.col_end};
    part.col_begin = block.col_begin / Blocking<T>::panel * Blocking<T>::panel;
    const Index stride = round_up(part.col_end - part.col_begin, Blocking<T>::panel);
    T* logits = logits_.ensure(round_up(block.count, Blocking<T>::row_group) * stride);
    for (Index h = 0; h < pass_.heads.q.count; ++h) {
      part.head = h;
      reader_->read(part, logits, stride);
      for (Index r = 0; r < block.count; ++r) {
        judge(h, pass_.heads.row_at(block.first + r),
              logits + r * stride + (block.col_begin - part.col_begin), choices_.data() + r * count,
              count, counts_[static_cast<std::size_t>(r)]);
      }
    }
  }

 private:
  bool is_sum() const { return all_.options.form == IndexForm::sum; }
  Index index_heads() const { return std::ssize(pass_.index); }
  LogitReader<double>& reader_of(Index h) { return *index_readers_[static_cast<std::size_t>(h)]; }

  Index to_softmax(double* products, Index count) {
    checkpoints_.after(8 * count);
    return detail::to_softmax(products, count);
  }
  void add_softmax(double* products, Index count, double* sums) {
    to_softmax(products, count);
    for (Index c = 0; c < count; ++c) sums[c] += products[c];
  }
  // Replaces the products of a block with the first query by the sums of softmaxes.
  void sum_up(const RowBlock& block, Index count) {
    for (Index r = 0; r < block.count; ++r) {
      seen_[static_cast<std::size_t>(r)] = to_softmax(row(r), count);
    }
    double* const products = others_.ensure(size(block));
    for (Index h = 1; h < index_heads(); ++h) {
      reader_of(h).read(block, products, stride());
      for (Index r = 0; r < block.count; ++r) {
        add_softmax(products + r * stride(), count, row(r));
      }
    }
  }

  // `seen` is how many keys are visible, for sums.
  template <class Place>
  ChoiceCounts choose(Index row, const double* scores, Index count, Index seen, const Place& place,
                      Choice* to) {
    const LogitSource<double>& index = pass_.streamed();
    const Index cols = index.k.rows;
    double q_norm = 0;
    query_rows_.clear();
    for (HeadRows<double>& queries : index_queries_) {
      query_rows_.push_back(queries.row(0, row));
      q_norm = std::max(q_norm, norm_above(query_rows_.back()));
    }
    const auto terms = [&](Index c, const RowView<double>& query) {
      return detail::Terms::of(query, index_keys_.row(0, place(c)));
    };
    const detail::ScoreError products =
        detail::score_error(index.q.cols, is_sum() ? 3 : 1, all_.options.kernel.sum_bits, q_norm,
                            all_.key_norm_max);
    // Copies, which stay in registers.
    const auto size = [=, norms = all_.key_norms.data()](Index c) {
      return q_norm * norms[place(c)];
    };
    const auto choose_by = [&](const auto& ends, const auto& closer) {
      return chosen_.choose(scores, count, cols, row + cols - index.q.rows, place, ends, closer,
                            to);
    };
    ChoiceCounts counts;
    if (is_sum()) {
      const auto error =
          detail::SumError::of(products, index_heads(), q_norm * all_.key_norm_max, seen, cols);
      const auto radius = [&](Index c) {
        double most = 0;
        for (const RowView<double>& query : query_rows_) {
          most = std::max(most, products.radius(terms(c, query)));
        }
        return most;
      };
      counts = choose_by([&](Index c) {
        return error.of(scores[c], products.radius(size(c), size(c)));
      }, [&](Index c) { return error.of(scores[c], error.is_known() ? radius(c) : 0); });
    } else {
      const double largest = q_norm * all_.key_norm_max;
      const double reach = largest + products.radius(largest, largest);
      const auto rounded = [=, &kernel = all_.options.kernel](const Enclosure& score) {
        return detail::rounded_score(score, kernel, reach);
      };
      counts = choose_by([=](Index c) {
        return rounded(products.of(scores[c], size(c)));
      }, [&](Index c) { return rounded(products.of(scores[c], terms(c, query_rows_.front()))); });
    }
    all_.out.sure[static_cast<std::size_t>(row)] = counts.sure;
    all_.out.selected[static_cast<std::size_t>(row)] = counts.selected;
    if (all_.columns) {
      Column* found = all_.columns + row * all_.options.keys;
      for (Index c = 0; c < count; ++c) {
        if (to[c] == Choice::sure) *found++ = static_cast<Column>(place(c));
      }
    }
    checkpoints_.after(8 * count);
    return counts;
  }

  // By how much the logits of a row, capped or not, may be off. The stream rounds the scale, then
  // multiplies it into the query: two roundings more than the dot product's. A soft-cap c tanh(x / c)
  // has slopes of at most 1. Its quotient and product are rounded and tanh is wrong by 4 units in the
  // last place at most: in all by less than 8 epsilon of itself, as x / cosh(x)^2 <= tanh(x), and
  // below the least normal number by so much.
  double logit_radius(Index head, Index row) {
    const LogitSource<T>& heads = pass_.heads;
    const double q = norm_above(queries_.row(head, row)), k = all_.head_key_norm_max;
    const DotBound bound = DotBound::of<T>(heads.q.cols, heads.q.cols + 2);
    const double radius = bound.radius(heads.scale, q, k), cap = all_.softcap;
    if (cap == 0) return radius;
    const double largest_logit = std::min(cap, product_above(std::abs(heads.scale), q, k) + radius);
    return next_up(radius + 8 * std::numeric_limits<double>::epsilon() * largest_logit +
                   4 * (1 + cap) * std::numeric_limits<double>::min()) *
           (1 + 4 * std::numeric_limits<double>::epsilon());
  }

  void judge(Index head, Index row, const T* logits, const Choice* choices, Index count,
             const ChoiceCounts& counts) {
    if (counts.selected == 0) return;  // the row sees nothing
    const double cap = all_.softcap;
    const auto map = [cap](T x) {
      const auto product = static_cast<double>(x);
      return cap > 0 ? cap * std::tanh(product / cap) : product;
    };
    T largest = -std::numeric_limits<T>::infinity();
    for (Index c = 0; c < count; ++c) largest = std::max(largest, logits[c]);
    const double shift = map(largest);
    const detail::WeightSums sums = mass_.sums(logits, choices, count, counts, shift, map);
    checkpoints_.after(8 * count);
    const double sink = all_.sinks[static_cast<std::size_t>(head)];
    const Enclosure sink_term = sink > -no_bound
                                    ? exp(Enclosure::exactly(sink) - Enclosure::exactly(shift))
                                    : Enclosure{0, 0};
    const Enclosure mass = detail::kept_mass(sums, logit_radius(head, row), sink_term);
    const double asked = all_.options.mass;
    const Index at = head * pass_.heads.q.rows + row;
    all_.out.least[at] = mass.lo;
    all_.out.most[at] = mass.hi;
    Verdict& verdict = all_.out.verdict[static_cast<std::size_t>(at)];
    verdict = mass.lo >= asked  ? Verdict::holds
              : mass.hi < asked ? Verdict::fails
                                : Verdict::undecided;
    if (verdict != Verdict::undecided) return;
    // Exact logits decide only if they did not leave the row undecided for its scores.
    const Enclosure at_best = detail::kept_mass(sums, 0, sink_term);
    if (!(at_best.lo < asked && at_best.hi > asked)) all_.open[static_cast<std::size_t>(row)] = 1;
  }

  const Pass<T> pass_;
  Selection& all_;
  std::unique_ptr<LogitReader<T>> reader_;  // it cannot be moved
  HeadRows<T> queries_;
  HeadRows<double> index_keys_;
  std::vector<RowView<double>> query_rows_;  // of the index, in the row that is judged
  std::vector<HeadRows<double>> index_queries_;  // of each query head of the index
  std::vector<std::unique_ptr<LogitReader<double>>> index_readers_;
  detail::SelectedKeys chosen_;
  detail::KeptMass mass_;
  std::vector<Choice> choices_;  // of the rows of a block, side by side
  std::vector<ChoiceCounts> counts_;
  std::vector<Index> seen_;
  Buffer<double> others_;  // products with another query head of the index
  Buffer<T> logits_;
  Checkpoints checkpoints_;
};

// The largest bound of the norms of the first keys of each head. Writes those of all, if asked to, of
// one head.
template <class T>
double largest_norm(const Heads<T>& keys, Index count, Vector<double>* all = nullptr) {
  HeadRows<T> rows(keys);
  Checkpoints checkpoints;
  double largest = 0;
  for (Index h = 0; h < keys.count; ++h) {
    for (Index j = 0; j < count; ++j) {
      checkpoints.after(keys.cols);
      const double norm = norm_above(rows.row(h, j));
      largest = std::max(largest, norm);
      if (all) (*all)[j] = norm;
    }
  }
  return largest;
}

void check_index(const Heads<float>& x, bool may_have_heads, Index rows_of_head, Index read,
                 const char* name) {
  if (!(x.count == 1 || (may_have_heads && x.count > 1)) || x.rows != rows_of_head) {
    throw InputError(name, " must be ", (may_have_heads ? "matrices" : "a matrix"), " with ",
                     rows_of_head, " rows; got ", x.rows);
  }
  HeadRows<float> rows(x);
  float largest = 0;
  for (Index h = 0; h < x.count; ++h) {
    for (Index i = 0; i < read; ++i) checked_row(name, rows, h, i, largest);
  }
}

template <class T>
void check(const LogitSource<T>& source, const Heads<float>& q_index, const Heads<float>& k_index,
           const SelectionOptions& options) {
  source.validate();
  check_mask(source.mask, source.q.count, source.q.rows, source.k.rows);
  if (source.bias.is_set() || source.q.rotary.table || source.k.rotary.table) {
    throw InputError("certify_selection takes no bias and no rotary positions");
  }
  if (!source.mask.is_shared(source.q.count, source.k.rows)) {
    throw InputError(
        "the query heads of an index must have the same mask, key_mask and key_lengths");
  }
  if (options.first < 0 || options.window < 1 || options.budget() < 1) {
    throw InputError("keys must be more than first + window; got ", options.keys);
  }
  if (!(options.mass > 0 && options.mass < 1)) {
    throw InputError("mass must lie strictly between 0 and 1; got ", options.mass);
  }
  if (q_index.cols != k_index.cols || q_index.cols < 1) {
    throw InputError("Q_index and K_index must have rows of the same size; got ", q_index.cols,
                     " and ", k_index.cols);
  }
  const bool is_sum = options.form == IndexForm::sum;
  const Kernel& kernel = options.kernel;
  if (!kernel.float32 || kernel.product || kernel.bias || kernel.weights ||
      (is_sum && kernel.logits)) {
    throw InputError("kernel must round scores in float32, or to a dtype in the form \"dot\"");
  }
  check_index(q_index, is_sum, source.q.rows, source.q.rows, "Q_index");
  check_index(k_index, false, source.k.rows, valid_keys(source, 0), "K_index");
}

template <class T>
void judge_rows(const std::vector<LogitSource<double>>& index, const LogitSource<T>& heads,
                Selection& selection, const Run& run) {
  const KeyLayouts layouts = whole_row_layouts(index.front(), run);
  const PackedKeys<T> keys(heads, 0, heads.k.count, run, layouts);
  const PackedKeys<double> index_keys(index.front(), 0, 1, run, layouts);
  const Pass<T> pass{index, index_keys, heads, keys};
  stream_tiles(index.front(), index_keys, run, [&] { return SelectionFold<T>(pass, selection); });
}

}  // namespace

template <class T>
SelectionRows certify_selection(const LogitSource<T>& source, const Heads<float>& q_index,
                                const Heads<float>& k_index, const SelectionOptions& options,
                                Column* columns, const Run& run) {
  check(source, q_index, k_index, options);
  const StandardArithmetic arithmetic;
  const Index rows = source.q.rows, valid = valid_keys(source, 0);
  Selection selection{.options = options,
                      .key_norms = Vector<double>::Zero(k_index.rows),
                      .head_key_norm_max = largest_norm(source.k, valid),
                      .softcap = source.softcap,
                      .sinks = {},
                      .columns = columns,
                      .out = SelectionRows(source.q.count, rows),
                      .open = std::vector<char>(static_cast<std::size_t>(rows), 0)};
  selection.key_norm_max = largest_norm(k_index, valid, &selection.key_norms);
  for (Index h = 0; h < source.q.count; ++h) selection.sinks.push_back(source.sink(h));
  if (columns) std::fill_n(columns, rows * options.keys, Column(-1));
  LogitSource<double> whole;
  whole.q = detail::in_double(q_index);
  whole.k = detail::in_double(k_index);
  whole.group = whole.q.count;  // one key head for all
  std::vector<LogitSource<double>> index;  // of each query head, with the mask that all share
  for (Index h = 0; h < q_index.count; ++h) {
    index.push_back(query_head_of(whole, h));
    index.back().mask = source.mask;
  }
  LogitSource<T> heads = source;
  heads.softcap = 0;  // the fold caps products
  heads.sinks = nullptr;
  judge_rows(index, heads, selection, run);
  if constexpr (!std::is_same_v<T, double>) {
    std::vector<Index> open;
    for (Index i = 0; i < rows; ++i) {
      if (selection.open[static_cast<std::size_t>(i)]) open.push_back(i);
    }
    selection.out.rescanned = std::ssize(open);
    LogitSource<double> wide;
    wide.q = detail::in_double(heads.q);
    wide.k = detail::in_double(heads.k);
    wide.group = heads.group;
    wide.scale = heads.scale;
    wide.mask = heads.mask;
    wide.rows = std::span<const Index>(open);
    for (LogitSource<double>& head : index) head.rows = wide.rows;
    if (!open.empty()) judge_rows(index, wide, selection, run);
  }
  return std::move(selection.out);
}

template SelectionRows certify_selection(const LogitSource<float>&, const Heads<float>&,
                                         const Heads<float>&, const SelectionOptions&, Column*,
                                         const Run&);
template SelectionRows certify_selection(const LogitSource<double>&, const Heads<float>&,
                                         const Heads<float>&, const SelectionOptions&, Column*,
                                         const Run&);

}  // namespace headfit
