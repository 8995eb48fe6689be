# Finds Eigen 3.4 (tested: 3.4.0 and 3.4.1): that of the system if there is one, else that of the PyPI
# package cmeel-eigen, which installs below <prefix>/cmeel.prefix. Later versions may compute other last
# bits, and rename the internals that cpp/headfit/simd/packet.hpp lists.
find_package(Eigen3 3.4...<3.4.90 QUIET CONFIG)
if(NOT Eigen3_FOUND)
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH SKBUILD_PLATLIB_DIR)
    list(APPEND HEADFIT_EIGEN_PREFIXES "${prefix}/cmeel.prefix")
  endforeach()
  # find_package(Python) is not called: pybind11 would then no longer look for Python's headers.
  if(Python_EXECUTABLE)
    set(HEADFIT_PYTHON "${Python_EXECUTABLE}")
  else()
    find_program(HEADFIT_PYTHON NAMES python3 python)
  endif()
  if(HEADFIT_PYTHON)
    execute_process(
      COMMAND "${HEADFIT_PYTHON}" -c
              "import sys, os; print(';'.join(os.path.join(p, 'cmeel.prefix') for p in sys.path if p))"
      OUTPUT_VARIABLE HEADFIT_PYTHON_PREFIXES OUTPUT_STRIP_TRAILING_WHITESPACE)
    list(APPEND HEADFIT_EIGEN_PREFIXES ${HEADFIT_PYTHON_PREFIXES})
  endif()
  list(PREPEND CMAKE_PREFIX_PATH ${HEADFIT_EIGEN_PREFIXES})
  find_package(Eigen3 REQUIRED CONFIG)
endif()
if(Eigen3_VERSION VERSION_LESS 3.4 OR Eigen3_VERSION VERSION_GREATER_EQUAL 3.4.90)
  message(FATAL_ERROR "headfit needs Eigen 3.4; found ${Eigen3_VERSION} in ${Eigen3_DIR}")
endif()
message(STATUS "Eigen ${Eigen3_VERSION} from ${Eigen3_DIR}")
