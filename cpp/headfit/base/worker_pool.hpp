// Threads that wait between parallel regions, for work whose regions are so short that
// starting threads for each of them would cost more than they bring.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace headfit {

class WorkerPool {
 public:
  explicit WorkerPool(int helpers);
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  ~WorkerPool();

  // Calls work() here and on up to `helpers` helpers: those that wake before it is done here.
  // A call from within another one's work runs here alone. work() must not throw.
  void run(int helpers, const std::function<void()>& work);

 private:
  void help();

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void()>* work_ = nullptr;
  std::atomic<std::uint64_t> generation_{0};  // of the work
  int wanted_ = 0;                            // helpers that may still join it
  std::atomic<int> active_{0};                // helpers at it
  std::atomic<bool> closed_{false};
  std::vector<std::jthread> threads_;  // last: they end before what they use
};

}  // namespace headfit
