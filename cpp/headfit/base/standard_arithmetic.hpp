// The arithmetic that every bound of this library counts on: rounding to nearest, gradual
// underflow, no traps. A program may have asked its CPU for another one (PyTorch's
// set_flush_denormal, code linked with -ffast-math, fesetround).
#pragma once

#include <cfenv>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace headfit {

// Sets the standard floating-point environment of this thread, and on destruction restores the
// one it found. Threads inherit theirs from whoever starts them.
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
