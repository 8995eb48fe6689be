// Independent tasks on a few threads: tasks are handed out in order, one at a
// time, so uneven work balances itself and nothing depends on who did what.
#pragma once

#include <algorithm>
#include <functional>

#include "headfit/base/checkpoint.hpp"
#include "headfit/base/errors.hpp"
#include "headfit/base/standard_arithmetic.hpp"
#include "headfit/base/types.hpp"

namespace headfit {

class WorkerPool;

// How to run: the number of threads (0: all there are), and a function that the
// calling thread calls now and then; it throws to stop the work (Ctrl-C).
struct Run {
  int threads = 0;
  std::function<void()> poll;
  WorkerPool* helpers = nullptr;  // none: threads are started for each region

  int thread_count(Index tasks) const;
};

namespace detail {

class Region;

// Where one thread of a parallel region gets its tasks from.
class TaskSource {
 public:
  TaskSource(Region& region, Interruptible& here) : region_(region), here_(here) {}

  // Goes on to the next task, after a checkpoint; false if none is left, or if the region stops
  // because one has failed.
  bool next();
  // The first task, number 0, before next() was called.
  Index current() const { return current_; }

 private:
  Region& region_;
  Interruptible& here_;
  Index current_ = 0;
  bool has_begun_ = false;
};

// Calls work(tasks) on every thread of a region of `count` tasks, and throws the failure of the
// earliest task that failed.
void run_region(Index count, const Run& run, const std::function<void(TaskSource&)>& work);

}  // namespace detail

// Calls worker(task) for task = 0 ... count-1, where every thread makes its own
// worker (its buffers) with make_worker(). The calling thread works too. All of them compute in
// standard arithmetic.
template <class MakeWorker>
void parallel_tasks(Index count, const Run& run, MakeWorker&& make_worker) {
  const auto work = [&make_worker](detail::TaskSource& tasks) {
    auto worker = make_worker();
    while (tasks.next()) worker(tasks.current());
  };
  detail::run_region(count, run, std::cref(work));
}

// The same for rows 0 ... count-1, a few at a time: worker(first, end).
template <class MakeWorker>
void parallel_rows(Index count, const Run& run, MakeWorker&& make_worker, Index few = 64) {
  parallel_tasks((count + few - 1) / few, run, [&] {
    return [worker = make_worker(), count, few](Index task) mutable {
      worker(task * few, std::min((task + 1) * few, count));
    };
  });
}

// One shared body that needs no buffers, for every task.
template <class Body>
void parallel_for(Index count, const Run& run, const Body& body) {
  parallel_tasks(count, run, [&body] { return [&body](Index task) { body(task); }; });
}

}  // namespace headfit
