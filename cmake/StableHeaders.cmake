# Copies header libraries to the build folder. pip builds in a new temporary environment each time,
# and so finds Eigen and pybind11 in another folder each time: everything would be compiled again.
# The copy stays at one place, and its files keep their times while their contents are the same.
function(headfit_keep_headers target name)
  get_target_property(found ${target} INTERFACE_INCLUDE_DIRECTORIES)
  set(kept "${PROJECT_BINARY_DIR}/headers/${name}")
  file(GLOB_RECURSE headers RELATIVE "${found}" "${found}/${name}/*")
  foreach(header IN LISTS headers)
    get_filename_component(folder "${kept}/${header}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    file(COPY_FILE "${found}/${header}" "${kept}/${header}" ONLY_IF_DIFFERENT)
  endforeach()
  set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${kept}")
endfunction()
