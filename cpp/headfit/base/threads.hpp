// Independent tasks on a few threads: tasks are handed out in order, one at a
// time, so uneven work balances itself and nothing depends on who did what.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "headfit/base/checkpoint.hpp"
#include "headfit/base/errors.hpp"
#include "headfit/base/standard_arithmetic.hpp"
#include "headfit/base/types.hpp"
#include "headfit/base/worker_pool.hpp"

namespace headfit {

// How to run: the number of threads (0: all there are), and a function that the
// calling thread calls now and then; it throws to stop the work (Ctrl-C).
struct Run {
  int threads = 0;
  std::function<void()> poll;
  WorkerPool* helpers = nullptr;  // none: threads are started for each region

  int thread_count(Index tasks) const {
    const int wanted =
        threads > 0 ? threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    return static_cast<int>(std::clamp<Index>(tasks, 1, wanted));
  }
};

namespace detail {

// The failure of the earliest task wins, so that the error a user sees is the
// same for every number of threads.
class FirstFailure {
 public:
  void record(Index task) {
    const std::lock_guard lock(mutex_);
    if (!error_ || task < task_) {
      error_ = std::current_exception();
      task_ = task;
    }
    stop_.store(true, std::memory_order_relaxed);
  }
  // A checkpoint threw: that is before all tasks, and those that are at work stop too.
  void record_interrupt() {
    record(-1);
    interrupted_.store(true, std::memory_order_relaxed);
  }
  bool stopped() const { return stop_.load(std::memory_order_relaxed); }
  const std::atomic<bool>* interrupted() const { return &interrupted_; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> stop_{false}, interrupted_{false};
  std::exception_ptr error_;
  Index task_ = 0;
};

// Helpers at work, and the calling thread's wait for them, in which it still polls.
class Helpers {
 public:
  void join() {
    const std::lock_guard lock(mutex_);
    ++at_work_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--at_work_ == 0) left_.notify_one();
  }
  template <class Check>
  void wait(const Check& check) {
    std::unique_lock lock(mutex_);
    const auto none = [this] { return at_work_ == 0; };
    while (!left_.wait_for(lock, Interruptible::poll_every, none)) {
      lock.unlock();
      check();
      lock.lock();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable left_;
  int at_work_ = 0;
};

}  // namespace detail

// Calls worker(task) for task = 0 ... count-1, where every thread makes its own
// worker (its buffers) with make_worker(). The calling thread works too. All of them compute in
// standard arithmetic.
template <class MakeWorker>
void parallel_tasks(Index count, const Run& run, MakeWorker&& make_worker) {
  if (count <= 0) return;
  std::atomic<Index> next{0};
  detail::FirstFailure failure;

  const auto work = [&](const std::function<void()>& poll) {
    const StandardArithmetic arithmetic;
    Interruptible here(poll, failure.interrupted());
    Index task = 0;
    try {
      auto worker = make_worker();
      while (!failure.stopped() && (task = next.fetch_add(1, std::memory_order_relaxed)) < count) {
        worker(task);
        here.check();
      }
    } catch (...) {
      if (here.was_stopped()) {
        failure.record_interrupt();
      } else {
        failure.record(task);
      }
    }
  };

  const int threads = run.thread_count(count);
  const std::function<void()> no_poll;
  if (run.helpers) {
    const std::thread::id caller = std::this_thread::get_id();
    const auto part = [&] { work(std::this_thread::get_id() == caller ? run.poll : no_poll); };
    run.helpers->run(threads - 1, std::ref(part));
  } else {
    detail::Helpers at_work;
    const auto help = [&] {
      work(no_poll);
      at_work.leave();
    };
    std::vector<std::jthread> helpers;
    helpers.reserve(static_cast<std::size_t>(threads - 1));
    for (int t = 1; t < threads; ++t) {
      at_work.join();
      try {
        helpers.emplace_back(help);
      } catch (...) {  // no more threads or memory to have: those there are will do
        at_work.leave();
        break;
      }
    }
    work(run.poll);
    Interruptible here(run.poll, failure.interrupted());
    try {
      at_work.wait([&] { here.check(); });
    } catch (...) {
      failure.record_interrupt();
    }
  }
  failure.rethrow();
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
