#include "headfit/pattern/tolerances.hpp"

#include <charconv>
#include <cmath>
#include <string>

#include "headfit/base/errors.hpp"

namespace headfit {
namespace {

// Returns the number with enough digits to tell it from its neighbours.
std::string shown(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof(digits), value).ptr};
}

}  // namespace

void Tolerances::check() const {
  if (!(leak > 0 && leak < 1)) {
    throw InputError("leak must lie strictly between 0 and 1; got " + shown(leak));
  }
  if (!(distortion >= 0 && std::isfinite(distortion))) {
    throw InputError("distortion must be finite and at least 0; got " + shown(distortion));
  }
  if (!(max_logit > 0)) {
    throw InputError("max_logit must be positive; got " + shown(max_logit));
  }
}

}  // namespace headfit
