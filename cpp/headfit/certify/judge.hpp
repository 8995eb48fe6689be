// From enclosures to verdicts, and what both kinds of certificate ask of their input.
#pragma once

#include <string>

#include "headfit/base/errors.hpp"
#include "headfit/certify/certificate.hpp"
#include "headfit/certify/rounding.hpp"

namespace headfit::detail {

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

inline void check_arguments(const Target& target, Index heads, Index rows, Index cols,
                            const Tolerances& tolerances) {
  if (heads != 1 || rows != target.n || cols != target.n) {
    throw InputError("Q and K must be single matrices with one row for each of the " +
                     std::to_string(target.n) + " rows of A; got " + std::to_string(rows) +
                     " and " + std::to_string(cols));
  }
  if (!(tolerances.leak > 0 && tolerances.leak < 1)) {
    throw InputError("leak must lie strictly between 0 and 1; got " +
                     std::to_string(tolerances.leak));
  }
  if (!(tolerances.distortion >= 0 && std::isfinite(tolerances.distortion))) {
    throw InputError("distortion must be finite and at least 0; got " +
                     std::to_string(tolerances.distortion));
  }
  if (!(tolerances.max_logit > 0)) {
    throw InputError("max_logit must be positive; got " + std::to_string(tolerances.max_logit));
  }
}

}  // namespace headfit::detail
