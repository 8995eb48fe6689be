#include "headfit/base/checkpoint.hpp"

#include "headfit/base/standard_arithmetic.hpp"

namespace headfit {

Interruptible*& Interruptible::innermost() {
  thread_local Interruptible* of_this_thread = nullptr;
  return of_this_thread;
}

void Interruptible::check() {
  was_stopped_ = true;  // remains true if anything below throws
  if (stop_ && stop_->load(std::memory_order_relaxed)) throw Interrupted();
  if (outer_) outer_->check();
  if (poll_) {
    const auto now = Clock::now();
    if (now - polled_ > poll_every) {
      polled_ = now;
      // The poll may run a signal handler, which may change the arithmetic of this thread.
      const StandardArithmetic kept;
      poll_();
    }
  }
  was_stopped_ = false;
}

void checkpoint() {
  if (Interruptible* here = Interruptible::innermost()) here->check();
}

}  // namespace headfit
