// Which CPU levels this machine can run. Nothing of the core is in here: this module is loaded
// before one of its builds is chosen.
#include <pybind11/pybind11.h>

namespace headfit::python {
namespace {

namespace py = pybind11;

// The levels of the x86-64 psABI, lowest first; none on other architectures. The compiler's
// runtime asks the CPU and, for wide registers, whether the system saves them.
py::tuple x86_levels() {
  py::list levels;
#ifdef __x86_64__
  __builtin_cpu_init();
#ifdef HEADFIT_KNOWS_LEVEL_NAMES
  const bool v2 = __builtin_cpu_supports("x86-64-v2");
  const bool v3 = __builtin_cpu_supports("x86-64-v3");
  const bool v4 = __builtin_cpu_supports("x86-64-v4");
#else  // older compilers: the features that came last with each level
  const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
  const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
#endif
  if (v2) levels.append("v2");
  if (v3) levels.append("v3");
  if (v4) levels.append("v4");
#endif
  return levels;
}

}  // namespace
}  // namespace headfit::python

PYBIND11_MODULE(_cpu, m) {
  m.doc() = "What the CPU can run. Use headfit.config() instead.";
  m.def("x86_levels", &headfit::python::x86_levels);
}
