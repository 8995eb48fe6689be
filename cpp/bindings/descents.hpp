// The limits of a descent with the Python function that they refer to, and how descents end.
#pragma once

#include "arrays.hpp"
#include "headfit/descent/limits.hpp"

namespace headfit::python {

inline const char* ending_of(DescentStatus status) {
  switch (status) {
    case DescentStatus::Enough: return "enough";
    case DescentStatus::Converged: return "converged";
    case DescentStatus::StepLimit: return "step limit";
    case DescentStatus::TimeLimit: return "time limit";
    default: return "stopped";
  }
}

struct DescentArguments {
  DescentLimits limits;
  py::object progress;

  // These refer to this object, which must outlive the descent.
  DescentLimits view() const {
    DescentLimits made = limits;
    if (!progress.is_none()) {
      made.progress = [this](Index step, double divergence) {
        const UserCode here;
        return progress(step, divergence).template cast<bool>();
      };
    }
    return made;
  }
};

}  // namespace headfit::python
