#include "headfit/base/threads.hpp"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "headfit/base/worker_pool.hpp"

namespace headfit {

int Run::thread_count(Index tasks) const {
  const int most =
      threads > 0 ? threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return static_cast<int>(std::clamp<Index>(tasks, 1, most));
}

namespace detail {
namespace {

// Keeps the failure of the earliest task, so that the error that a user sees is the same for every
// number of threads.
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
  // A checkpoint threw. This takes precedence over the failure of any task, and stops the tasks
  // that are running.
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

// Counts the helping threads that are at work. While the calling thread waits for them, it goes on
// polling.
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

}  // namespace

// What the threads of a parallel region share.
class Region {
 public:
  explicit Region(Index count) : count_(count) {}

  // The next task; a number of `count` or more if none is left.
  Index take() { return next_.fetch_add(1, std::memory_order_relaxed); }
  Index count() const { return count_; }
  FirstFailure& failure() { return failure_; }

  void work(const std::function<void()>& poll, const std::function<void(TaskSource&)>& body) {
    const StandardArithmetic arithmetic;
    Interruptible here(poll, failure_.interrupted());
    TaskSource tasks(*this, here);
    try {
      body(tasks);
    } catch (...) {
      if (here.was_stopped()) {
        failure_.record_interrupt();
      } else {
        failure_.record(tasks.current());
      }
    }
  }

 private:
  Index count_;
  std::atomic<Index> next_{0};
  FirstFailure failure_;
};

bool TaskSource::next() {
  if (has_begun_) here_.check();
  has_begun_ = true;
  if (region_.failure().stopped()) return false;
  current_ = region_.take();
  return current_ < region_.count();
}

void run_region(Index count, const Run& run, const std::function<void(TaskSource&)>& work) {
  if (count <= 0) return;
  Region region(count);
  const int threads = run.thread_count(count);
  const std::function<void()> no_poll;
  if (run.helpers) {
    const std::thread::id caller = std::this_thread::get_id();
    const auto part = [&] {
      region.work(std::this_thread::get_id() == caller ? run.poll : no_poll, work);
    };
    run.helpers->run(threads - 1, std::ref(part));
  } else {
    Helpers at_work;
    const auto help = [&] {
      region.work(no_poll, work);
      at_work.leave();
    };
    JoiningThreads helpers;
    helpers.reserve(static_cast<std::size_t>(threads - 1));
    for (int t = 1; t < threads; ++t) {
      at_work.join();
      try {
        helpers.start(help);
      } catch (...) {  // The system has no more threads or memory: go on with those there are.
        at_work.leave();
        break;
      }
    }
    region.work(run.poll, work);
    Interruptible here(run.poll, region.failure().interrupted());
    try {
      at_work.wait([&] { here.check(); });
    } catch (...) {
      region.failure().record_interrupt();
    }
  }
  region.failure().rethrow();
}

}  // namespace detail
}  // namespace headfit
