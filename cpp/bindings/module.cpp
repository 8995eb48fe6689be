// The extension module: its registrations, and the one translation of errors.
#include "arrays.hpp"
#include "headfit/logits/stream.hpp"

namespace headfit::python {
namespace {

// Sets the Python error to one of the class in headfit.errors with this name.
void raise(const char* name, const Error& error) {
  py::set_error(py::module_::import("headfit.errors").attr(name), error.what());
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const TargetError& e) {
    raise("TargetError", e);
  } catch (const NonFiniteError& e) {
    raise("NonFiniteError", e);
  } catch (const InputError& e) {
    raise("InputError", e);
  } catch (const Error& e) {
    raise("HeadfitError", e);
  }
}

std::string eigen_version() {
  return detail::joined({EIGEN_WORLD_VERSION, ".", EIGEN_MAJOR_VERSION, ".", EIGEN_MINOR_VERSION});
}

const char* compiler() {
#ifdef __clang__
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

// Standard arithmetic for Python code: `with StandardArithmetic(): ...`.
class ArithmeticContext {
 public:
  void enter() { arithmetic_.emplace(); }
  void exit(const py::args&) { arithmetic_.reset(); }

 private:
  std::optional<StandardArithmetic> arithmetic_;
};

}  // namespace
}  // namespace headfit::python

// The build names the module: _core_v3 is this core, compiled for x86-64-v3.
PYBIND11_MODULE(HEADFIT_MODULE, m) {
  using namespace headfit::python;
  m.doc() = "The C++ core of headfit. Use the functions of the package headfit instead.";
  py::register_local_exception_translator(&translate);
  py::class_<ArithmeticContext>(m, "StandardArithmetic")
      .def(py::init<>())
      .def("__enter__", &ArithmeticContext::enter)
      .def("__exit__", &ArithmeticContext::exit);
  bind_calls(m);
  bind_logits(m);
  bind_attention(m);
  bind_pattern(m);
  bind_lower(m);
  bind_certify(m);
  bind_projection(m);
  bind_max_margin(m);
  bind_learned(m);
  bind_soft(m);
  bind_compress(m);
  bind_cache(m);
  bind_index(m);
  bind_sparsify(m);
  bind_analysis(m);
  py::dict build;
  build["level"] = HEADFIT_CPU_LEVEL;
  build["compiler"] = compiler();
  build["flags"] = HEADFIT_COMPILE_FLAGS;
  build["eigen"] = eigen_version();
  m.attr("build") = build;
  m.attr("row_granule") = headfit::row_granule;
}
