# How libraries and tests of all rooms are compiled; also for the page (gui/web), which is a project of its own.

option(CPSCOPE_UNITY "Compile the files of a folder in batches, with a precompiled header" ON)
set(CPSCOPE_BATCH_BYTES 65536 CACHE STRING "Source bytes of a batch. Fewer: sooner after an edit. More: all of them sooner")

# Compiles the target's C++ files folder by folder in batches, with the precompiled header of the target HEADERS.
# Names in anonymous namespaces are unique within a folder for that (a test in tests/house holds them to it).
# Files with compile options of their own stay apart (CMake's rule).
function(cpscope_batch target headers)
  if(NOT CPSCOPE_UNITY)
    return()
  endif()
  if(TARGET ${headers})
    target_precompile_headers(${target} REUSE_FROM ${headers})
    # GCC 12 forgets which lines of a precompiled header are the system's, and then warns of its own strings; and it takes the
    # files of a batch for headers, whose types should not use anonymous namespaces.
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds;-Wno-restrict\
;-Wno-stringop-overflow;-Wno-stringop-overread;-Wno-subobject-linkage>")
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  get_property(sanitized GLOBAL PROPERTY CPSCOPE_SANITIZED_SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(path ${source} ABSOLUTE)
    file(SIZE ${path} size)
    get_filename_component(folder ${path} DIRECTORY)
    get_filename_component(name ${folder} NAME)
    if(path IN_LIST sanitized)
      set(name ${name}_sanitized)
    endif()
    string(MAKE_C_IDENTIFIER ${folder}_${name} key)
    if(NOT DEFINED ${key}_bytes)
      set(${key}_bytes 0)
      set(${key}_batch 1)
    endif()
    math(EXPR bytes "${${key}_bytes} + ${size}")
    if(bytes GREATER CPSCOPE_BATCH_BYTES AND ${key}_bytes GREATER 0)
      math(EXPR ${key}_batch "${${key}_batch} + 1")
      set(bytes ${size})
    endif()
    set(${key}_bytes ${bytes})
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${name}_${${key}_batch})
  endforeach()
endfunction()

# cpscope_sanitize(TARGET REGEX): the target's files that the expression finds read foreign bytes or own raw memory. They are
# compiled once more, under the sanitizers, for memory_tests, which links them in place of these: so they share no batch with
# other files.
function(cpscope_sanitize target regex)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX ${regex})
  list(TRANSFORM sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(GLOBAL APPEND PROPERTY CPSCOPE_SANITIZED_SOURCES ${sources})
endfunction()

# For libraries of texts, commands and words, which nobody waits for: a third less to compile. Clang, which compiles wheels and the
# page, then makes code that is a fifth smaller too.
function(cpscope_optimise_little target)
  target_compile_options(${target} PRIVATE
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release,RelWithDebInfo>>:$<IF:$<CXX_COMPILER_ID:Clang>,-Os,-O1>>)
endfunction()

# The Python package is a shared library made of the same static ones; a page has no such thing. Libraries and their precompiled
# header must agree in this.
function(cpscope_make_shareable target)
  if(NOT EMSCRIPTEN)
    set_target_properties(${target} PROPERTIES
      POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  endif()
endfunction()

# Declares a library of the house: cpscope_add_library(cpscope_sim plan/plan.cpp ...); its alias is cpscope::sim. Words of
# add_library (EXCLUDE_FROM_ALL) may stand before the files; target_sources may add more.
function(cpscope_add_library target)
  add_library(${target} STATIC ${ARGN})
  string(REPLACE "cpscope_" "cpscope::" alias ${target})
  add_library(${alias} ALIAS ${target})
  cpscope_make_shareable(${target})
  cmake_language(EVAL CODE "cmake_language(DEFER CALL cpscope_batch ${target} cpscope_headers)")
endfunction()
