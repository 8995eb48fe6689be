// The time limit of calls.
#include "arrays.hpp"

namespace headfit::python {

void bind_calls(py::module_& m) {
  // Limits the time of all calls from this thread until it is called again; None: no limit.
  m.def("limit_calls", [](std::optional<double> seconds) {
    using Clock = std::chrono::steady_clock;
    constexpr double longest = 1e8;
    const auto now = Clock::now();
    call_deadline() = Clock::time_point::max();
    if (seconds && *seconds < longest) {
      const std::chrono::duration<double> left(*seconds);
      call_deadline() = now + std::chrono::duration_cast<Clock::duration>(left);
    }
  }, Standard(), py::arg("seconds"));
}

}  // namespace headfit::python
