// From enclosures to verdicts, and what both kinds of certificate ask of their input.
#pragma once

#include <string>

#include "headfit/base/errors.hpp"
#include "headfit/certify/certificate.hpp"
#include "headfit/certify/rounding.hpp"

namespace headfit::detail {

inline Verdict judge(const Enclosure& leak, const Enclosure& distortion, const Tolerances& tolerances) {
  if (leak.lo > tolerances.leak || distortion.lo > tolerances.distortion) return Verdict::fails;
  if (leak.hi <= tolerances.leak && distortion.hi <= tolerances.distortion) return Verdict::holds;
  return Verdict::undecided;
}

inline void check_arguments(const Target& target, Index heads, Index rows, Index cols,
                     const Tolerances& tolerances) {
  if (heads != 1 || rows != target.n || cols != target.n) {
    throw InputError("Q and K must be single matrices with one row for each of the " +
                     std::to_string(target.n) + " rows of A; got " + std::to_string(rows) + " and " +
                     std::to_string(cols));
  }
  if (!(tolerances.leak > 0 && tolerances.leak < 1)) {
    throw InputError("leak must lie strictly between 0 and 1; got " +
                     std::to_string(tolerances.leak));
  }
  if (!(tolerances.distortion >= 0 && std::isfinite(tolerances.distortion))) {
    throw InputError("distortion must be finite and at least 0; got " +
                     std::to_string(tolerances.distortion));
  }
}

}  // namespace headfit::detail
