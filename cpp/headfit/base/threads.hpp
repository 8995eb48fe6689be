// Independent tasks on a few threads. Tasks are handed out in order, one at a time, so that threads
// with short tasks take more of them. No result depends on which thread did which task.
#pragma once

#include <algorithm>
#include <functional>

#include "headfit/base/checkpoint.hpp"
#include "headfit/base/errors.hpp"
#include "headfit/base/standard_arithmetic.hpp"
#include "headfit/base/types.hpp"

namespace headfit {

class WorkerPool;

// How to run: on how many threads (0 for all cores), and with which function to poll. The calling
// thread calls `poll` every 50 ms; it throws in order to stop the work, for instance after Ctrl-C.
struct Run {
  int threads = 0;
  std::function<void()> poll;
  WorkerPool* helpers = nullptr;  // if null, threads are started for each region

  int thread_count(Index tasks) const;
};

namespace detail {

class Region;

// From here one thread of a parallel region gets its tasks.
class TaskSource {
 public:
  TaskSource(Region& region, Interruptible& here) : region_(region), here_(here) {}

  // Goes on to the next task, after a checkpoint. Returns false if no task is left, or if the
  // region stops because a task has failed.
  bool next();
  // The number of the task; 0 before the first call of next().
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

// Calls worker(task) for task = 0 ... count-1. Every thread, the calling one included, makes a
// worker of its own with make_worker(), which holds its buffers. All of them compute in standard
// arithmetic.
template <class MakeWorker>
void parallel_tasks(Index count, const Run& run, MakeWorker&& make_worker) {
  const auto work = [&make_worker](detail::TaskSource& tasks) {
    auto worker = make_worker();
    while (tasks.next()) worker(tasks.current());
  };
  detail::run_region(count, run, std::cref(work));
}

// The same for rows 0 ... count-1, in tasks of a few rows: calls worker(first, end).
template <class MakeWorker>
void parallel_rows(Index count, const Run& run, MakeWorker&& make_worker, Index few = 64) {
  parallel_tasks((count + few - 1) / few, run, [&] {
    return [worker = make_worker(), count, few](Index task) mutable {
      worker(task * few, std::min((task + 1) * few, count));
    };
  });
}

// The same for a body that needs no buffers and is shared by all threads.
template <class Body>
void parallel_for(Index count, const Run& run, const Body& body) {
  parallel_tasks(count, run, [&body] { return [&body](Index task) { body(task); }; });
}

}  // namespace headfit
