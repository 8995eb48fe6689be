# Refuses options with which a compiler departs from IEEE 754: certificates are proved for it. Most of
# them are refused by certify/rounding.hpp too, but Clang has no macros that tell of them.
get_directory_property(options COMPILE_OPTIONS)
foreach(config IN LISTS CMAKE_BUILD_TYPE CMAKE_CONFIGURATION_TYPES)
  string(TOUPPER "${config}" config)
  string(APPEND options " ${CMAKE_CXX_FLAGS_${config}}")
endforeach()
if("${CMAKE_CXX_FLAGS} ${options}" MATCHES
   "-(Ofast|f((fast|unsafe|associative|reciprocal|finite)-math[a-z-]*|no-(signed-zeros|honor-[a-z]+)|approx-func|single-precision-constant|fp-model=(fast|aggressive)))")
  message(FATAL_ERROR "headfit's certificates must be compiled without ${CMAKE_MATCH_0}")
endif()
