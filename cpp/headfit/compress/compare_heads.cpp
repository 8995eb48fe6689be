#include "headfit/compress/compress.hpp"

namespace headfit {

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
