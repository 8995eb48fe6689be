// Threads that wait between parallel regions, for work whose regions are so short that
// starting threads for each of them would cost more than they bring.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace headfit {

class WorkerPool {
 public:
  explicit WorkerPool(int helpers) {
    threads_.reserve(static_cast<std::size_t>(helpers));
    try {
      for (int t = 0; t < helpers; ++t) threads_.emplace_back([this] { help(); });
    } catch (const std::system_error&) {
      // The system has no more threads to give: those there are will do.
    }
  }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  ~WorkerPool() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    wake_.notify_all();
  }

  // Calls work() here and on up to `helpers` helpers: those that wake before it is done here.
  // A call from within another one's work runs here alone. work() must not throw.
  void run(int helpers, const std::function<void()>& work) {
    std::unique_lock lock(mutex_);
    const bool is_free = !work_;
    if (is_free && helpers > 0) {
      work_ = &work;
      wanted_ = helpers;
      ++generation_;
      wake_.notify_all();
    }
    lock.unlock();
    work();
    if (!is_free) return;
    lock.lock();
    wanted_ = 0;  // who has not joined by now is too late
    lock.unlock();
    soon([this] { return active_ == 0; });
    lock.lock();
    done_.wait(lock, [this] { return active_ == 0; });
    work_ = nullptr;
  }

 private:
  // Regions follow each other within microseconds: to fall asleep would take longer. Yielding
  // leaves the core to whoever has work.
  template <class Condition>
  static void soon(const Condition& holds) {
    for (int turn = 0; turn < 200 && !holds(); ++turn) std::this_thread::yield();
  }

  void help() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      lock.unlock();
      soon([&] { return closed_ || generation_ != seen; });
      lock.lock();
      wake_.wait(lock, [&] { return closed_ || (wanted_ > 0 && generation_ != seen); });
      if (closed_) return;
      seen = generation_;
      --wanted_;
      ++active_;
      const std::function<void()>& work = *work_;
      lock.unlock();
      work();
      lock.lock();
      if (--active_ == 0) done_.notify_one();
    }
  }

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
