#include "headfit/pattern/blocks.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace headfit {
namespace {

constexpr double same = 1e-6;

// Writes where runs of nonzeros of a row start, and where they end. Runs that reach the last token
// have no end, nor do runs that a causal mask cuts off at the token itself.
void find_runs(const Target& t, Index row, bool is_causal, std::vector<Index>& places) {
  places.clear();
  const auto columns = t.row_columns(row);
  for (std::size_t p = 0; p < columns.size(); ++p) {
    const Index j = columns[p];
    if (p == 0 || columns[p - 1] + 1 != j) places.push_back(j);
    const bool goes_on = p + 1 < columns.size() && columns[p + 1] == j + 1;
    if (!goes_on && j != t.n - 1 && !(is_causal && j == row)) places.push_back(j + 1);
  }
}

// The greatest common divisor of all places where a run starts or ends, and of all rows whose runs
// are others than those of the row before.
Index common_divisor(const Target& t, bool is_causal) {
  std::vector<Index> before, places;
  Index size = 0;
  Checkpoints checkpoints;
  for (Index i = 0; i < t.n && size != 1; ++i) {
    find_runs(t, i, is_causal, places);
    for (const Index place : places) size = std::gcd(size, place);
    if (i > 0 && places != before) size = std::gcd(size, i);
    places.swap(before);
    checkpoints.after(t.offsets[i + 1] - t.offsets[i] + 1);
  }
  return size;
}

// Whether the weights of a row are those of the last row of its block, up to a factor.
bool has_weights_of(const Target& t, Index row, Index last, Index size,
                    std::vector<double>& of_block) {
  const auto columns = t.row_columns(row), blocks = t.row_columns(last);
  const auto weights = t.row_weights(row), wanted = t.row_weights(last);
  of_block.clear();
  std::size_t at = 0;
  for (const Column j : columns) {
    const Index first = j / size * size;
    while (at < blocks.size() && blocks[at] < first) ++at;
    if (at == blocks.size() || blocks[at] != first) return false;
    of_block.push_back(wanted[at]);
  }
  const double factor = std::accumulate(of_block.begin(), of_block.end(), 0.0) /
                        std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t p = 0; p < of_block.size(); ++p) {
    const double difference = std::log(of_block[p]) - std::log(factor) - std::log(weights[p]);
    if (!(std::abs(difference) <= same)) return false;
  }
  return true;
}

}  // namespace

Index block_size(const Target& t, bool is_causal, const Run& run) {
  check_entries(t, run);
  const Index size = common_divisor(t, is_causal);
  if (size < 2 || size >= t.n) return 0;
  std::vector<double> of_block;
  Checkpoints checkpoints;
  for (Index i = 0; i < t.n; ++i) {
    // The last row of a block sees all of it; under a causal mask earlier ones see less.
    const Index last = std::min((i / size + 1) * size, t.n) - 1;
    if (!has_weights_of(t, i, last, size, of_block)) return 0;
    checkpoints.after(t.offsets[i + 1] - t.offsets[i] + 1);
  }
  return size;
}

}  // namespace headfit
