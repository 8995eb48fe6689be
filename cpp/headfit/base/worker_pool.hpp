// Threads that wait between parallel regions. They are for work whose regions are so short that
// starting threads for each of them would take longer than the region itself.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "headfit/base/threads.hpp"

namespace headfit {

// Threads that are joined when the object ends. std::jthread would do the same, but libc++, the
// standard library of macOS, has had it by default since its version 20 only.
class JoiningThreads {
 public:
  JoiningThreads() = default;
  JoiningThreads(const JoiningThreads&) = delete;
  JoiningThreads& operator=(const JoiningThreads&) = delete;
  ~JoiningThreads() {
    for (std::thread& thread : threads_) thread.join();
  }

  void reserve(std::size_t count) { threads_.reserve(count); }

  // Throws std::system_error where the system has no more threads to give.
  template <class Work>
  void start(Work&& work) {
    threads_.emplace_back(std::forward<Work>(work));
  }

 private:
  std::vector<std::thread> threads_;
};

class WorkerPool {
 public:
  explicit WorkerPool(int helpers);
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  ~WorkerPool();

  // Calls work() on this thread and on up to `helpers` others, those that wake up before it has
  // ended on this thread. A call from within work() runs on the calling thread alone. work() must
  // not throw.
  void run(int helpers, const std::function<void()>& work);

 private:
  void help();

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void()>* work_ = nullptr;
  std::atomic<std::uint64_t> generation_{0};  // counts the calls of run()
  int wanted_ = 0;                            // helpers that may still join the work
  std::atomic<int> active_{0};                // helpers that are at work
  std::atomic<bool> closed_{false};
  JoiningThreads threads_;  // declared last, so that threads end before what they use
};

// A run on some threads, which wait for its regions from the first to the last one.
class PooledRun {
 public:
  PooledRun(const Run& run, int threads)
      : helpers_(threads - 1), run_{threads, run.poll, &helpers_} {}
  PooledRun(const PooledRun&) = delete;
  PooledRun& operator=(const PooledRun&) = delete;

  operator const Run&() const { return run_; }

 private:
  WorkerPool helpers_;
  Run run_;
};

}  // namespace headfit
