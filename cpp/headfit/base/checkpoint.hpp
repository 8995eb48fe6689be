// How work that takes long can be stopped, for instance by Ctrl-C. Such code calls checkpoint()
// every few milliseconds, at any depth of calls and on any thread. Where no caller has asked to be
// able to stop the work, a checkpoint does nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

#include "headfit/base/errors.hpp"
#include "headfit/base/types.hpp"

namespace headfit {

// As long as an object of this class lives, checkpoints of the thread that made it call `poll`
// every 50 ms, which throws to stop the work, and throw Interrupted once `stop` is set. Objects may
// be nested: a checkpoint asks the outer ones too.
class Interruptible {
 public:
  explicit Interruptible(const std::function<void()>& poll, const std::atomic<bool>* stop = nullptr)
      : poll_(poll), stop_(stop), outer_(innermost()) {
    innermost() = this;
  }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
  ~Interruptible() { innermost() = outer_; }

  static constexpr auto poll_every = std::chrono::milliseconds(50);

  void check();

  // Whether a checkpoint has thrown. If so, an exception that arrives now comes from there and is
  // not a failure of the work itself.
  bool was_stopped() const { return was_stopped_; }

  // The innermost object of this thread; a null pointer if there is none.
  static Interruptible*& innermost();

 private:
  using Clock = std::chrono::steady_clock;

  const std::function<void()>& poll_;
  const std::atomic<bool>* stop_;
  Interruptible* outer_;
  Clock::time_point polled_ = Clock::now();
  bool was_stopped_ = false;
};

// Not inlined, so that the loops that call it keep their registers.
[[gnu::cold]] void checkpoint();

// Checkpoints for loops in which one iteration may take anything from nanoseconds to seconds: there
// is one checkpoint for every few million operations.
class Checkpoints {
 public:
  void after(Index operations) {
    if ((operations_ += operations) < between) return;
    operations_ = 0;
    checkpoint();
  }

 private:
  static constexpr Index between = Index(1) << 23;
  Index operations_ = 0;
};

}  // namespace headfit
