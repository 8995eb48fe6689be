#include "headfit/pattern/tolerances.hpp"

#include <cmath>

#include "headfit/base/errors.hpp"

namespace headfit {

void Tolerances::check() const {
  if (!(leak > 0 && leak < 1)) {
    throw InputError("leak must lie strictly between 0 and 1; got " + as_typed(leak));
  }
  if (!(distortion >= 0 && std::isfinite(distortion))) {
    throw InputError("distortion must be finite and at least 0; got " + as_typed(distortion));
  }
  if (!(max_logit > 0)) {
    throw InputError("max_logit must be positive; got " + as_typed(max_logit));
  }
}

}  // namespace headfit
