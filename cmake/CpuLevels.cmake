# The Python package holds the whole core once for each CPU level that it is built for, and takes
# the best that the machine can run when it is imported (python/headfit/_build.py). A build
# from source is for this machine; wheels are built for all levels.
include(CheckCXXSourceCompiles)
check_cxx_source_compiles("
  #ifndef __x86_64__
  #error not x86-64
  #endif
  int main() { return 0; }" HEADFIT_TARGET_IS_X86_64)
if(HEADFIT_TARGET_IS_X86_64)
  set(HEADFIT_CPU_LEVELS_DEFAULT native)
  set(HEADFIT_ALL_CPU_LEVELS x86-64-v2 x86-64-v3 x86-64-v4)
else()
  set(HEADFIT_CPU_LEVELS_DEFAULT generic)
  set(HEADFIT_ALL_CPU_LEVELS generic)
endif()
set(HEADFIT_CPU_LEVELS "${HEADFIT_CPU_LEVELS_DEFAULT}" CACHE STRING
    "CPU levels of the Python package: any of x86-64-v2, x86-64-v3, x86-64-v4, generic, native; or all")
set(levels "${HEADFIT_CPU_LEVELS}")
if(SKBUILD)
  # pip keeps the build folder and passes its settings in every call, so the setting of an earlier
  # call must not be remembered.
  unset(HEADFIT_CPU_LEVELS CACHE)
endif()
if(levels STREQUAL "all")
  set(levels ${HEADFIT_ALL_CPU_LEVELS})
endif()
set(HEADFIT_CPU_LEVELS "${levels}")

# Returns Python's name for a level, and the value of -march for it ("" for the compiler's default).
function(headfit_cpu_level level name_variable arch_variable)
  string(REGEX REPLACE "^x86-64-" "" name "${level}")
  if(NOT name MATCHES "^(v[234]|generic|native)$")
    message(FATAL_ERROR "HEADFIT_CPU_LEVELS: no such level: ${level}")
  elseif(name STREQUAL "generic")
    set(arch "")
  elseif(name STREQUAL "native")
    set(arch "native")
  else()
    set(arch "x86-64-${name}")
  endif()
  set(${name_variable} "${name}" PARENT_SCOPE)
  set(${arch_variable} "${arch}" PARENT_SCOPE)
endfunction()
