// The floating-point arithmetic that every error bound of this library relies on: rounding to
// nearest, gradual underflow, no traps. A program may have set its CPU to another arithmetic, for
// instance by PyTorch's set_flush_denormal, by code linked with -ffast-math, or by fesetround.
#pragma once

#include <cfenv>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace headfit {

// Sets the standard floating-point environment of this thread, and restores the previous one when
// it is destroyed. A new thread inherits its environment from the thread that starts it.
class StandardArithmetic {
 public:
  StandardArithmetic() {
    std::fegetenv(&found_);
    std::fesetenv(FE_DFL_ENV);
#if defined(__SSE2__)
    // Not every C library clears "flush to zero" and "denormals are zero" with the rest.
    constexpr unsigned round_to_nearest_and_mask_all_traps = 0x1f80;
    _mm_setcsr(round_to_nearest_and_mask_all_traps);
#endif
  }
  ~StandardArithmetic() { std::fesetenv(&found_); }
  StandardArithmetic(const StandardArithmetic&) = delete;
  StandardArithmetic& operator=(const StandardArithmetic&) = delete;

 private:
  std::fenv_t found_;
};

}  // namespace headfit
