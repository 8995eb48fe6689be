// Several descents, each on one thread.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "headfit/base/threads.hpp"

namespace headfit::descent {

// The results of fit(0), fit(1) ... side by side on the threads of the run. `done` is called after each
// one with its number, from any thread, one at a time.
template <class Result, class Fit>
std::vector<Result> side_by_side(std::size_t count,
                                 const std::function<void(Index, const Result&)>& done,
                                 const Run& run, const Fit& fit) {
  std::vector<Result> results(count);
  std::mutex reporting;
  parallel_for(static_cast<Index>(count), run, [&](Index at) {
    const auto place = static_cast<std::size_t>(at);
    results[place] = fit(place);
    if (!done) return;
    const std::lock_guard lock(reporting);
    done(at, results[place]);
  });
  return results;
}

}  // namespace headfit::descent
