// A fold outside the core: a histogram of the logits of a head, without the matrix of logits. It is
// compared with a count over that matrix. Exits with 0 when both agree.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "headfit/attention/attention.hpp"
#include "headfit/logits/stream.hpp"

using namespace headfit;

namespace {

// Counts of numbers in bins of equal width between `low` and `high`. The first and the last bin
// also count numbers outside this range.
class Histogram {
 public:
  Histogram(float low, float high, Index bins)
      : low_(low),
        width_((high - low) / static_cast<float>(bins)),
        counts_(static_cast<std::size_t>(bins), 0) {}

  void add(float x) {
    const auto last = static_cast<float>(counts_.size() - 1);
    const float bin = std::clamp(std::floor((x - low_) / width_), 0.0f, last);
    ++counts_[static_cast<std::size_t>(bin)];
  }
  void add(const Histogram& other) {
    std::transform(counts_.begin(), counts_.end(), other.counts_.begin(), counts_.begin(),
                   std::plus<>());
  }
  void clear() { std::fill(counts_.begin(), counts_.end(), 0); }

  const std::vector<Index>& counts() const { return counts_; }
  float start_of(std::size_t bin) const { return low_ + width_ * static_cast<float>(bin); }

 private:
  float low_, width_;
  std::vector<Index> counts_;
};

// A histogram that all threads add to, block by block.
struct SharedHistogram {
  Histogram all;
  std::mutex mutex;
};

// The fold. Each thread has one; the stream shows it the tiles of one block of rows after another.
// Masked logits are -inf.
class HistogramFold {
 public:
  explicit HistogramFold(SharedHistogram& shared) : shared_(shared), own_(shared.all) {
    own_.clear();
  }

  void begin(const RowBlock&) {}

  void tile(const RowBlock&, const Tile<float>& tile) {
    for (Index r = 0; r < tile.count; ++r) {
      const float* logits = tile.row(r);
      for (Index c = 0; c < tile.cols; ++c) {
        if (std::isfinite(logits[c])) own_.add(logits[c]);
      }
    }
  }

  void end(const RowBlock&) {
    const std::lock_guard lock(shared_.mutex);
    shared_.all.add(own_);
    own_.clear();
  }

 private:
  SharedHistogram& shared_;
  Histogram own_;
};

// The compiler says here, in one line, what a class lacks to be a fold.
static_assert(TileFold<HistogramFold, float>);

Matrix<float> normal_numbers(Index rows, Index cols, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Matrix<float> x(rows, cols);
  std::generate(x.data(), x.data() + x.size(), [&] { return normal(generator); });
  return x;
}

int show_a_histogram() {
  const Index n = 1000, d = 32;
  const Run all_cores;
  const Matrix<float> q = normal_numbers(n, d, 1), k = normal_numbers(n, d, 2);
  LogitSource<float> logits;
  logits.q = heads_of(q);
  logits.k = heads_of(k);
  logits.scale = 1 / std::sqrt(static_cast<double>(d));
  logits.mask.right = 0;  // causal

  SharedHistogram found{Histogram(-4, 4, 16), {}};
  stream_tiles(logits, all_cores, [&] { return HistogramFold(found); });

  Histogram expected(-4, 4, 16);
  Matrix<float> matrix(n, n);
  attention_logits<float>(logits, output_of(matrix), all_cores);
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j <= i; ++j) expected.add(matrix(i, j));
  }

  const std::vector<Index>& counts = found.all.counts();
  const Index most = *std::max_element(counts.begin(), counts.end());
  for (std::size_t bin = 0; bin < counts.size(); ++bin) {
    const int length = static_cast<int>(50 * counts[bin] / most);
    std::printf("%5.1f %7td %s\n", static_cast<double>(found.all.start_of(bin)), counts[bin],
                std::string(static_cast<std::size_t>(length), '#').c_str());
  }
  const bool agree = counts == expected.counts();
  std::printf("%s the count over the matrix of logits\n", agree ? "agrees with" : "differs from");
  return agree ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return show_a_histogram();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
