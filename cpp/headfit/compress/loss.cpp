#include <memory>
#include <numeric>

#include "headfit/base/linear_algebra.hpp"
#include "headfit/compress/folds.hpp"

namespace headfit {
namespace compress {
namespace {

// The rows of a unit: few enough to share long passages among threads, and so many that mapping the
// keys again for every unit takes little of its time. Where a sparse mask leaves few entries, rows with
// so many of them for each key.
constexpr Index unit_rows = 512, unit_entries = 8;
// The end of the unit that begins at a row.
template <class T>
Index unit_end(const LogitSource<T>& source, Index first) {
  const Index end = std::min(first + unit_rows, source.q.rows);
  const Offset* offsets = source.mask.sparse_offsets;
  if (!offsets) return end;
  const Offset enough = offsets[first] + unit_entries * source.k.rows;
  return std::lower_bound(offsets + end, offsets + source.q.rows, enough) - offsets;
}
// Into how many sums the units are divided. It does not depend on the number of threads, and neither
// does a result then.
constexpr Index most_groups = 64;

template <class T>
void check_passage(const LogitSource<T>& source, const LogitSource<T>& first) {
  source.validate();
  if (source.k.count != 1) throw InputError("a passage must have one key head");
  if (source.q.count != first.q.count || source.q.cols != first.q.cols) {
    throw InputError("all passages must have as many query heads, of one size");
  }
  for (const Heads<T>* x : {&source.q, &source.k}) {
    if (!std::holds_alternative<const T*>(x->data) || x->rotary.table) {
      throw InputError("passages must store the numbers to compute with, without positions");
    }
  }
}

template <class T>
class UnitWorker {
 public:
  explicit UnitWorker(const std::vector<Index>& numbers) : numbers_(numbers) {}

  // Adds to the loss the divergence of the rows of a unit from the target, or log Z of these rows if
  // that is null. Adds its gradient by the maps if that is not null.
  void add(const QueryHead<T>& head, const Unit& unit, const soft::TargetRows<T>* target,
           const Matrix<T>& maps, double& loss, Matrix<double>* gradient) {
    work_.with_gradient = gradient != nullptr;
    const LogitSource<T> source = mapped(head, unit, maps);
    const Run alone{1, {}};
    const KeyLayouts layouts = whole_row_layouts(source, alone);
    if (gradient) lay_out(source, layouts);
    const PackedKeys<T> keys(source, 0, 1, alone, layouts);
    if (target) {
      diverge_from(*target, source, keys, work_, loss);
    } else {
      stream_tiles(source, keys, alone, [&] { return PartitionFold<T>(source, work_, loss); });
    }
    if (gradient) add_gradient(head, unit, *gradient);
  }

 private:
  // The smaller head: mapped queries, for the rows of the unit only, and mapped keys.
  LogitSource<T> mapped(const QueryHead<T>& head, const Unit& unit, const Matrix<T>& maps) {
    const MatrixView<T> q = head.source.q[0], k = head.source.k[0];
    const Index size = head.source.q.cols, dim = maps.cols();
    work_.dim = dim;
    Eigen::Map<Matrix<T>> queries(work_.queries.ensure(q.rows() * dim), q.rows(), dim);
    Eigen::Map<Matrix<T>> keys(work_.keys.ensure(k.rows() * dim), k.rows(), dim);
    queries.middleRows(unit.first, unit.count).setZero();
    add_product<T>(q.middleRows(unit.first, unit.count), maps.middleRows(head.head * size, size),
                   queries.middleRows(unit.first, unit.count));
    keys.setZero();
    add_product<T>(k, maps.bottomRows(size), keys);
    LogitSource<T> source = head.source;
    source.q = {queries.data(), 1, q.rows(), dim, queries.size(), dim};
    source.k = {keys.data(), 1, k.rows(), dim, keys.size(), dim};
    source.scale = 1;
    source.rows = rows_of(unit, numbers_);
    work_.query_rows = {queries.data(), dim};
    return source;
  }

  void lay_out(const LogitSource<T>& source, const KeyLayouts& layouts) {
    work_.key_features.reset(source.k.rows, work_.dim, layouts);
    work_.query_sums.reset(source.k.rows, work_.dim, layouts);
    work_.key_features.set(source.k[0]);
    const Index sums = source.row_count() * work_.dim;
    std::fill_n(work_.key_sums.ensure(sums), sums, T(0));
  }

  void add_gradient(const QueryHead<T>& head, const Unit& unit, Matrix<double>& gradient) {
    const MatrixView<T> q = head.source.q[0], k = head.source.k[0];
    const Index size = head.source.q.cols;
    const Eigen::Map<const Matrix<T>> queries(work_.key_sums.data(), unit.count, work_.dim);
    product_.setZero(size, work_.dim);
    add_moments<T>(q.middleRows(unit.first, unit.count), queries, product_);
    gradient.middleRows(head.head * size, size) += product_.template cast<double>();
    work_.query_sums.for_layouts([&](const auto& sums) {
      product_.setZero();
      add_moments<T>(k, sums, product_);
      gradient.bottomRows(size) += product_.template cast<double>();
    });
  }

  const std::vector<Index>& numbers_;
  UnitWork<T> work_;
  Matrix<T> product_;
};

}  // namespace

template <class T>
void diverge_from(const soft::TargetRows<T>& target, const LogitSource<T>& source,
                  const PackedKeys<T>& keys, UnitWork<T>& work, double& loss) {
  typename soft::TargetRows<T>::Reader reader(target);
  stream_tiles(source, keys, Run{1, {}},
               [&] { return TargetFold<T>(source, reader, target, work, loss); });
}

}  // namespace compress

template <class T>
CompressLoss<T>::CompressLoss(std::span<const LogitSource<T>> passages, const Run& run) {
  if (passages.empty()) throw InputError("there must be a passage");
  heads_ = passages[0].q.count;
  dim_ = passages[0].q.cols;
  key_moments_.plain = key_moments_.centred = Matrix<double>::Zero(dim_, dim_);
  Index longest = 0;
  for (const LogitSource<T>& passage : passages) {
    checkpoint();
    compress::check_passage(passage, passages[0]);
    compress::add_keys(passage, key_moments_);
    add_passage(passage);
    longest = std::max(longest, passage.q.rows);
  }
  const auto keys = static_cast<double>(std::max<Index>(1, key_moments_.keys));
  key_moments_.plain /= keys;
  key_moments_.centred /= keys;
  numbers_.resize(static_cast<std::size_t>(longest));
  std::iota(numbers_.begin(), numbers_.end(), Index(0));
  measure(run);
  capped_ = targets_of(true, run);
}

template <class T>
void CompressLoss<T>::add_passage(const LogitSource<T>& passage) {
  LogitSource<T> source = passage;
  if (source.softcap == 0) {
    const Matrix<T>& keys = keys_.emplace_back(compress::centred_keys(passage));
    source.k = {keys.data(), 1, keys.rows(), keys.cols(), keys.size(), keys.cols()};
  }
  for (Index h = 0; h < heads_; ++h) {
    for (Index i = 0, end = 0; i < source.q.rows; i = end) {
      end = compress::unit_end(source, i);
      units_.push_back({static_cast<Index>(query_heads_.size()), i, end - i});
    }
    query_heads_.push_back({query_head_of(source, h), h});
  }
}

template <class T>
void CompressLoss<T>::measure(const Run& run) {
  std::vector<compress::Measured> sums(static_cast<std::size_t>(groups()),
                                       compress::Measured::zero(heads_, dim_));
  parallel_for(groups(), run, [&](Index g) {
    const auto group = static_cast<std::size_t>(g);
    for (std::size_t u = group; u < units_.size(); u += sums.size()) {
      const auto& head = query_heads_[static_cast<std::size_t>(units_[u].query_head)];
      compress::measure<T>(head.source, head.head, units_[u], numbers_, sums[group]);
    }
  });
  measured_ = compress::Measured::zero(heads_, dim_);
  for (const compress::Measured& sum : sums) measured_.add(sum);
  measured_.to_means();
}

template <class T>
compress::Targets<T> CompressLoss<T>::targets_of(bool only_capped, const Run& run) const {
  compress::Targets<T> targets(query_heads_.size());
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < query_heads_.size(); ++i) {
    if (!only_capped || query_heads_[i].source.softcap > 0) wanted.push_back(i);
  }
  const auto read = [&](Index w, const Run& inner) {
    const std::size_t i = wanted[static_cast<std::size_t>(w)];
    SoftTarget<T> target;
    target.attention = query_heads_[i].source;
    auto rows = std::make_unique<soft::TargetRows<T>>(target, inner);
    rows->pack(layouts_of(static_cast<Index>(i)), inner);
    targets[i] = std::move(rows);
  };
  // Threads go over the passages, or over the rows of each if there are fewer passages than threads.
  const auto count = static_cast<Index>(wanted.size());
  if (count < run.thread_count(count + 1)) {
    for (Index w = 0; w < count; ++w) read(w, run);
  } else {
    parallel_for(count, run, [&](Index w) { read(w, Run{1, {}}); });
  }
  return targets;
}

template <class T>
KeyLayouts CompressLoss<T>::layouts_of(Index query_head) const {
  LogitSource<T> part = query_heads_[static_cast<std::size_t>(query_head)].source;
  KeyLayouts layouts{false, false};
  for (const compress::Unit& unit : units_) {
    if (unit.query_head != query_head) continue;
    part.rows = compress::rows_of(unit, numbers_);
    layouts |= whole_row_layouts(part, Run{1, {}});
  }
  return layouts;
}

template <class T>
Index CompressLoss<T>::groups() const {
  return std::min(static_cast<Index>(units_.size()), compress::most_groups);
}

template <class T>
void CompressLoss<T>::check(const Matrix<double>& maps) const {
  if (maps.rows() != (heads_ + 1) * dim_ || maps.cols() < 1) {
    throw InputError("maps must have ", (heads_ + 1) * dim_, " rows; got ", maps.rows(), " x ",
                     maps.cols());
  }
  if (!maps.allFinite()) throw NonFiniteError("maps must be finite");
}

template <class T>
double CompressLoss<T>::evaluate(const Matrix<double>& maps, Matrix<double>* gradient,
                                 const Run& run, const compress::Targets<T>* targets) const {
  check(maps);
  const compress::Targets<T>& used_targets = targets ? *targets : capped_;
  const Matrix<T> used = maps.cast<T>();
  std::vector<double> losses(static_cast<std::size_t>(groups()), 0.0);
  std::vector<Matrix<double>> gradients(gradient ? losses.size() : 0);
  parallel_tasks(groups(), run, [&] {
    return [&, worker = std::make_unique<compress::UnitWorker<T>>(numbers_)](Index g) {
      const auto group = static_cast<std::size_t>(g);
      Matrix<double>* sum = gradient ? &gradients[group] : nullptr;
      if (sum) sum->setZero(maps.rows(), maps.cols());
      for (std::size_t u = group; u < units_.size(); u += losses.size()) {
        const compress::Unit& unit = units_[u];
        const auto head = static_cast<std::size_t>(unit.query_head);
        worker->add(query_heads_[head], unit, used_targets[head].get(), used, losses[group], sum);
      }
    };
  });
  const double count = static_cast<double>(std::max<Index>(1, rows()));
  double loss = std::accumulate(losses.begin(), losses.end(), 0.0) / count;
  if (gradient) {
    gradient->setZero(maps.rows(), maps.cols());
    for (const Matrix<double>& sum : gradients) *gradient += sum;
    *gradient /= count;
  }
  if (!targets) add_linear(used.template cast<double>(), loss, gradient);
  return loss;
}

template <class T>
void CompressLoss<T>::add_linear(const Matrix<double>& maps, double& loss,
                                 Matrix<double>* gradient) const {
  const auto key_map = maps.bottomRows(dim_);
  Matrix<double> product;
  double linear = 0;
  for (Index h = 0; h < heads_; ++h) {
    const auto query_map = maps.middleRows(h * dim_, dim_);
    const Matrix<double>& attended = measured_.attended[static_cast<std::size_t>(h)];
    multiply<double>(attended, key_map, product);
    linear += query_map.cwiseProduct(product).sum();
    if (!gradient) continue;
    gradient->middleRows(h * dim_, dim_) -= product;
    add_moments<double>(attended, query_map, gradient->bottomRows(dim_), -1);
  }
  loss -= linear + measured_.constant;
}

template void compress::diverge_from(const soft::TargetRows<float>&, const LogitSource<float>&,
                                     const PackedKeys<float>&, compress::UnitWork<float>&, double&);
template class CompressLoss<float>;
template class CompressLoss<double>;

}  // namespace headfit
