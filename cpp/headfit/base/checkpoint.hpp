// Ctrl-C in the middle of long work. Whatever may take long calls checkpoint() every few
// milliseconds, from any depth and on any thread; where nobody asked to be able to stop, that
// does nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

#include "headfit/base/errors.hpp"
#include "headfit/base/types.hpp"

namespace headfit {

// While this lives, checkpoints of the thread that made it call `poll` now and then, which throws
// to stop the work, and throw Interrupted once `stop` is set. Inside another one, whose
// checkpoints these are too.
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

  // Whether a checkpoint has thrown: an exception that arrives now is no failure of the work.
  bool was_stopped() const { return was_stopped_; }

  // Of this thread; none: a null pointer.
  static Interruptible*& innermost();

 private:
  using Clock = std::chrono::steady_clock;

  const std::function<void()>& poll_;
  const std::atomic<bool>* stop_;
  Interruptible* outer_;
  Clock::time_point polled_ = Clock::now();
  bool was_stopped_ = false;
};

// Out of line, so that the loops it stands in keep their registers.
[[gnu::cold]] void checkpoint();

// Checkpoints for loops whose turns may take nanoseconds or seconds: one for every few million
// operations.
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
