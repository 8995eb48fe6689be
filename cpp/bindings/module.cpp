// The extension module: its registrations, and the one translation of errors.
#include "arrays.hpp"

namespace headfit::python {
namespace {

// Raises the class of headfit.errors that has the name.
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

}  // namespace
}  // namespace headfit::python

PYBIND11_MODULE(_core, m) {
  using namespace headfit::python;
  m.doc() = "The C++ core of headfit. Use the functions of the package headfit instead.";
  py::register_local_exception_translator(&translate);
  bind_scores(m);
  bind_pattern(m);
  bind_construct(m);
  bind_soft(m);
  bind_certify(m);
  bind_sparsify(m);
  bind_analysis(m);
}
