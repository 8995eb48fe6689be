#include "headfit/index/fit_index.hpp"

#include <mutex>
#include <random>

#include "headfit/descent/adam.hpp"
#include "headfit/descent/limits.hpp"

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

class Descent {
 public:
  Descent(const IndexPassages& given, const Matrix<float>& start, const IndexOptions& options,
          const IndexDescent& settings)
      : given_(given),
        options_(options),
        settings_(settings),
        size_(given.passages[0].q.cols),
        fitted_(static_cast<Index>(given.passages.size()) - given.choosing),
        maps_{start},
        random_(settings.seed) {}

  IndexResult run() {
    const Stopwatch stopwatch;
    IndexResult result;
    result.maps = maps_.all;
    result.start = result.loss = validated();
    StackedMaps gradient{maps_.all}, unit = units();
    descent::Adam<StackedMaps> adam(
        StackedMaps{Matrix<float>::Zero(maps_.all.rows(), maps_.all.cols())});
    for (Index step = 0; step < settings_.steps; ++step) {
      checkpoint();
      const LogitSource<float>& passage = any_rows();
      const Index moved = given_.reach > 0 ? below(given_.reach + 1) : 0;
      loss_.evaluate(passage, moved_by(maps_.all, moved, true), options_, rows_, &gradient.all);
      gradient.all = moved_by(gradient.all, moved, false);
      const double share = descent::step_share(step, settings_.steps, warm_up);
      adam.advance(maps_, gradient, unit, largest_rate * share);
      if ((step + 1) % look_every != 0 && step + 1 != settings_.steps) continue;
      const double now = validated();
      if (!(now < result.loss)) continue;
      result.loss = now;
      result.maps = maps_.all;
    }
    result.seconds = stopwatch.seconds();
    return result;
  }

 private:
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
    StackedMaps unit{maps_.all};
    const LogitSource<float>& first = given_.passages[0];
    for (Index h = 0; h <= first.q.count; ++h) {
      const MatrixView<float> x = h < first.q.count ? first.q[h] : first.k[0];
      const Eigen::ArrayXd squares = x.cast<double>().colwise().squaredNorm().transpose();
      Eigen::ArrayXf spread = (squares / static_cast<double>(x.rows())).sqrt().cast<float>();
      spread = spread.max(0.1f * spread.mean()) + std::numeric_limits<float>::min();
      auto own = unit.all.middleRows(h * size_, size_);
      const Matrix<float> weighed = spread.matrix().asDiagonal() * own;
      own.colwise() = (static_cast<float>(descent::size_of(weighed)) * spread.inverse()).matrix();
    }
    return unit;
  }

  // One random row of each of as many equal parts of a random passage.
  const LogitSource<float>& any_rows() {
    const LogitSource<float>& passage = given_.passages[static_cast<std::size_t>(below(fitted_))];
    const Index all = passage.q.rows, count = std::min(settings_.rows, all);
    rows_.resize(static_cast<std::size_t>(count));
    for (Index i = 0; i < count; ++i) {
      const Index first = i * all / count, end = (i + 1) * all / count;
      rows_[static_cast<std::size_t>(i)] = first + below(end - first);
    }
    return passage;
  }
  Index below(Index limit) {
    return static_cast<Index>(random_() % static_cast<std::uint64_t>(limit));
  }

  // Passages where they are, and moved as far as they may be.
  double validated() {
    double sum = 0;
    Index count = 0;
    for (std::size_t p = static_cast<std::size_t>(given_.choosing > 0 ? fitted_ : 0);
         p < given_.passages.size(); ++p) {
      const LogitSource<float>& passage = given_.passages[p];
      const Index all = passage.q.rows, some = std::min(settings_.validated_rows, all);
      rows_.resize(static_cast<std::size_t>(some));
      for (Index i = 0; i < some; ++i) {
        rows_[static_cast<std::size_t>(i)] = ((2 * i + 1) * all) / (2 * some);
      }
      for (Index moved = 0; moved <= given_.reach; moved += std::max<Index>(1, given_.reach)) {
        checkpoint();
        sum += loss_.evaluate(passage, moved_by(maps_.all, moved, true), options_, rows_, nullptr);
        ++count;
      }
    }
    return sum / static_cast<double>(count);
  }

  const IndexPassages& given_;
  const IndexOptions& options_;
  const IndexDescent& settings_;
  Index size_, fitted_;
  StackedMaps maps_;
  std::mt19937_64 random_;
  std::vector<Index> rows_;
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
    if (passage.q.count != first.q.count || passage.q.cols != first.q.cols) {
      throw InputError("all passages must have as many query heads, of one size");
    }
  }
  if (start.rows() != (first.q.count + 1) * first.q.cols || start.cols() < 1) {
    throw InputError("maps must have rows for each query head and for the keys");
  }
  return Descent(given, start, options, descent).run();
}

std::vector<IndexResult> fit_indexes(std::span<const IndexPassages> groups,
                                     std::span<const Matrix<float>> starts,
                                     const IndexOptions& options, const IndexDescent& descent,
                                     const std::function<void(Index, const IndexResult&)>& done,
                                     const Run& run) {
  if (groups.size() != starts.size()) throw InputError("there must be a start for each group");
  std::vector<IndexResult> results(groups.size());
  std::mutex reporting;
  parallel_for(static_cast<Index>(groups.size()), run, [&](Index at) {
    const auto place = static_cast<std::size_t>(at);
    results[place] = fit_index(groups[place], starts[place], options, descent);
    if (!done) return;
    const std::lock_guard lock(reporting);
    done(at, results[place]);
  });
  return results;
}

}  // namespace headfit
