#include "headfit/base/worker_pool.hpp"

namespace headfit {
namespace {

// Waits briefly without sleeping. Regions follow each other within microseconds, and falling asleep
// would take longer than that. Yielding leaves the core to threads that have work.
template <class Condition>
void spin_until(const Condition& holds) {
  for (int turn = 0; turn < 200 && !holds(); ++turn) std::this_thread::yield();
}

}  // namespace

WorkerPool::WorkerPool(int helpers) {
  threads_.reserve(static_cast<std::size_t>(helpers));
  try {
    for (int t = 0; t < helpers; ++t) threads_.start([this] { help(); });
  } catch (...) {
    // The system has no more threads or memory to give: go on with those there are.
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  wake_.notify_all();
}

void WorkerPool::run(int helpers, const std::function<void()>& work) {
  std::unique_lock lock(mutex_);
  const bool takes_helpers = helpers > 0 && !work_;
  if (takes_helpers) {
    work_ = &work;
    wanted_ = helpers;
    ++generation_;
    wake_.notify_all();
  }
  lock.unlock();
  work();
  if (!takes_helpers) return;
  lock.lock();
  wanted_ = 0;  // helpers that have not joined by now must not join any more
  lock.unlock();
  spin_until([this] { return active_ == 0; });
  lock.lock();
  done_.wait(lock, [this] { return active_ == 0; });
  work_ = nullptr;
}

void WorkerPool::help() {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    lock.unlock();
    spin_until([&] { return closed_ || generation_ != seen; });
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

}  // namespace headfit
