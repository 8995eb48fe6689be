#include "headfit/index/fit_index.hpp"

#include "headfit/descent/adam.hpp"
#include "headfit/descent/limits.hpp"
#include "headfit/descent/row_samples.hpp"
#include "headfit/descent/side_by_side.hpp"

namespace headfit {
namespace {

// Tuned on key heads of SmolLM2-135M, passages of 1,024 tokens.
// The longest step, as a share of the size of the maps.
constexpr double largest_rate = 0.1;
constexpr Index warm_up = 20;  // steps
constexpr Index look_every = 25;  // steps

// The maps as `Adam` takes them.
struct StackedMaps {
  Matrix<float> all;
  template <class Work, class... Others>
  void for_each(const Work& work, Others&... others) {
    work(all, others.all...);
  }
};

class GroupDescent {
 public:
  GroupDescent(const IndexPassages& given, const Matrix<float>& start, const IndexOptions& options,
               const IndexDescent& settings)
      : given_(given),
        options_(options),
        settings_(settings),
        size_(given.passages[0].q.cols),
        fitted_(static_cast<Index>(given.passages.size()) - given.choosing),
        start_{start},
        samples_(settings.seed) {}

  IndexResult run() {
    const Stopwatch stopwatch;
    const auto judge = [&](const StackedMaps& maps) { return validated(maps); };
    const auto to_gradient = [&](const StackedMaps& maps, StackedMaps& gradient) {
      set_gradient(maps.all, gradient.all);
    };
    const double start = judge(start_);
    if (!loss_.saw_free_keys()) {
      throw InputError(given_.name + " that choose have no row that sees a key besides the " +
                       std::to_string(options_.kept.first) + " first and the " +
                       std::to_string(options_.kept.window) + " last ones (`first` and `window`)");
    }
    const auto best =
        descent::best_by_adam<StackedMaps>({start_, start}, units(),
                                           {settings_.steps, largest_rate, warm_up, look_every},
                                           to_gradient, judge);
    return {best.maps.all, start, best.loss, stopwatch.seconds()};
  }

 private:
  // That of some rows of a passage, anywhere that it may be moved to.
  void set_gradient(const Matrix<float>& maps, Matrix<float>& gradient) {
    const LogitSource<float>& passage =
        given_.passages[static_cast<std::size_t>(samples_.below(fitted_))];
    const std::vector<Index>& rows = samples_.random(settings_.rows, passage.q.rows);
    const Index moved = given_.reach > 0 ? samples_.below(given_.reach + 1) : 0;
    loss_.evaluate(passage, moved_by(maps, moved, true), options_, rows, &gradient);
    gradient = moved_by(gradient, moved, false);
  }

  // A passage that is moved by some tokens has all queries and keys turned by the same angles. Its
  // products are those of the passage as it is with maps that are turned back.
  Matrix<float> moved_by(const Matrix<float>& maps, Index tokens, bool back) const {
    if (tokens == 0) return maps;
    Matrix<float> columns = maps.transpose();
    for (Index c = 0; c < columns.rows(); ++c) {
      for (Index first = 0; first < columns.cols(); first += size_) {
        float* x = columns.row(c).data() + first;
        if (back) {
          given_.positions.turn_back(tokens, x, size_);
        } else {
          given_.positions.turn(tokens, x, size_);
        }
      }
    }
    return columns.transpose();
  }

  // The length of a step of each number: shorter where the numbers that it multiplies are large.
  StackedMaps units() const {
    StackedMaps unit = start_;
    const LogitSource<float>& first = given_.passages[0];
    for (Index h = 0; h < first.q.count + first.k.count; ++h) {
      const Matrix<float> x =
          h < first.q.count ? first.q[h] : without_padding(first, first.k[h - first.q.count]);
      const Eigen::ArrayXd squares = x.cast<double>().colwise().squaredNorm().transpose();
      const auto count = static_cast<double>(std::max<Index>(1, x.rows()));
      Eigen::ArrayXf spread = (squares / count).sqrt().cast<float>();
      spread = spread.max(0.1f * spread.mean()) + std::numeric_limits<float>::min();
      auto own = unit.all.middleRows(h * size_, size_);
      const Matrix<float> weighed = spread.matrix().asDiagonal() * own;
      own.colwise() = (static_cast<float>(descent::size_of(weighed)) * spread.inverse()).matrix();
    }
    return unit;
  }

  // The mean over passages with attention to free keys, where they are and moved as far as they may be;
  // 0 where there are none.
  double validated(const StackedMaps& maps) {
    double sum = 0;
    Index count = 0;
    for (std::size_t p = static_cast<std::size_t>(given_.choosing > 0 ? fitted_ : 0);
         p < given_.passages.size(); ++p) {
      const LogitSource<float>& passage = given_.passages[p];
      const std::vector<Index>& rows = samples_.even(settings_.validated_rows, passage.q.rows);
      for (Index moved = 0; moved <= given_.reach; moved += std::max<Index>(1, given_.reach)) {
        checkpoint();
        sum += loss_.evaluate(passage, moved_by(maps.all, moved, true), options_, rows, nullptr);
        count += loss_.mass() > 0;
      }
    }
    return sum / static_cast<double>(std::max<Index>(1, count));
  }

  const IndexPassages& given_;
  const IndexOptions& options_;
  const IndexDescent& settings_;
  Index size_, fitted_;
  StackedMaps start_;
  descent::RowSamples samples_;
  IndexLoss loss_;
};

}  // namespace

IndexResult fit_index(const IndexPassages& given, const Matrix<float>& start,
                      const IndexOptions& options, const IndexDescent& descent) {
  if (given.choosing < 0 || given.choosing >= static_cast<Index>(given.passages.size())) {
    throw InputError("there must be a passage to fit to");
  }
  const LogitSource<float>& first = given.passages[0];
  for (const LogitSource<float>& passage : given.passages) {
    check_index_passage(passage);
    if (passage.q.count != first.q.count || passage.k.count != first.k.count ||
        passage.q.cols != first.q.cols) {
      throw InputError("all passages must have as many heads, of one size");
    }
  }
  if (start.rows() != map_rows(first) || start.cols() < 1) {
    throw InputError("maps must have rows for each query head and each key head");
  }
  return GroupDescent(given, start, options, descent).run();
}

std::vector<IndexResult> fit_indexes(std::span<const IndexPassages> groups,
                                     std::span<const Matrix<float>> starts,
                                     const IndexOptions& options, const IndexDescent& descent,
                                     const std::function<void(Index, const IndexResult&)>& done,
                                     const Run& run) {
  if (groups.size() != starts.size()) throw InputError("there must be a start for each group");
  return descent::side_by_side(groups.size(), done, run, [&](std::size_t at) {
    return fit_index(groups[at], starts[at], options, descent);
  });
}

}  // namespace headfit
