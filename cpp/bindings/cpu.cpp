// Tells which CPU levels this machine can run. This module uses nothing of the core, since it is
// loaded before one of the core's builds is chosen. It uses Python's C interface, since pybind11
// would take a hundred times as long to compile.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace {

struct Levels {
  bool v2 = false, v3 = false, v4 = false;
};

// The levels of the x86-64 psABI; none on other architectures. The compiler's runtime asks the CPU,
// and for wide registers also whether the operating system saves them.
Levels supported() {
  Levels levels;
#ifdef __x86_64__
  __builtin_cpu_init();
#ifdef HEADFIT_KNOWS_LEVEL_NAMES
  levels.v2 = __builtin_cpu_supports("x86-64-v2");
  levels.v3 = __builtin_cpu_supports("x86-64-v3");
  levels.v4 = __builtin_cpu_supports("x86-64-v4");
#else  // older compilers know only single features, such as those that came last with each level
  levels.v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
  levels.v3 = levels.v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  levels.v4 = levels.v3 && __builtin_cpu_supports("avx512f") &&
              __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
#endif
  return levels;
}

// Each level includes those below it.
PyObject* x86_levels(PyObject*, PyObject*) {
  const Levels levels = supported();
  if (levels.v4) return Py_BuildValue("(sss)", "v2", "v3", "v4");
  if (levels.v3) return Py_BuildValue("(ss)", "v2", "v3");
  if (levels.v2) return Py_BuildValue("(s)", "v2");
  return Py_BuildValue("()");
}

PyMethodDef functions[] = {
    {"x86_levels", &x86_levels, METH_NOARGS,
     "x86_levels()\n--\n\nReturn the x86-64 levels of this CPU, the lowest first."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot slots[] = {{0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "_cpu",
                          "What the CPU can run. Use headfit.show_config() instead.",
                          0,
                          functions,
                          slots,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__cpu() { return PyModuleDef_Init(&definition); }
