// From enclosures to a verdict.
#pragma once

#include "headfit/certify/certificate.hpp"
#include "headfit/certify/rounding.hpp"

namespace headfit::detail {

// A row holds if every value within the enclosures meets the tolerances, and fails if none does.
inline Verdict judge(const Enclosure& leak, const Enclosure& distortion, const Enclosure& size,
                     const Tolerances& tolerances) {
  const auto fails = [](const Enclosure& x, double limit) { return x.lo > limit; };
  const auto holds = [](const Enclosure& x, double limit) { return x.hi <= limit; };
  if (fails(leak, tolerances.leak) || fails(distortion, tolerances.distortion) ||
      fails(size, tolerances.max_logit)) {
    return Verdict::fails;
  }
  if (holds(leak, tolerances.leak) && holds(distortion, tolerances.distortion) &&
      holds(size, tolerances.max_logit)) {
    return Verdict::holds;
  }
  return Verdict::undecided;
}

}  // namespace headfit::detail
