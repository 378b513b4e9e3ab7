# The libraries of headers that every folder uses: fmt::fmt, nlohmann_json::nlohmann_json, tomlplusplus::tomlplusplus, Eigen3::Eigen.

option(CPSCOPE_HEADERS_ALONE "Link no fmt. Headers that the system lacks come from PyPI, toml++ from an archive" OFF)
if(NOT CPSCOPE_HEADERS_ALONE)
  find_package(fmt REQUIRED)
  find_package(tomlplusplus REQUIRED)
  find_package(nlohmann_json REQUIRED)
  find_package(Eigen3 3.4 REQUIRED NO_MODULE)
  return()
endif()

# Where the Python that builds the package has what pyproject.toml requires.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
execute_process(COMMAND ${Python_EXECUTABLE} -c "import sys; print(*filter(None, sys.path), sep=';')"
  OUTPUT_VARIABLE packages OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(package_folders)
foreach(folder IN LISTS packages)
  list(APPEND package_folders ${folder}/cmeel.prefix/include ${folder}/nlohmann_json/include)
endforeach()

# cpscope_find_headers(TARGET FILE SUFFIX [PACKAGE]): TARGET has the folder in which FILE is: the system's, else that of PyPI's PACKAGE.
function(cpscope_find_headers target file suffix)
  string(MAKE_C_IDENTIFIER CPSCOPE_FOLDER_OF_${file} folder)
  find_path(${folder} ${file} PATH_SUFFIXES ${suffix})
  find_path(${folder} ${file} PATH_SUFFIXES ${suffix} PATHS ${package_folders} NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
  if(${folder})
    add_library(${target} INTERFACE IMPORTED GLOBAL)
    target_include_directories(${target} INTERFACE ${${folder}})
    message(STATUS "cpscope: ${file} is that of ${${folder}}")
  elseif(ARGN)
    message(FATAL_ERROR "The header ${file} is missing: install your system's package that has it, or ${ARGN} from PyPI")
  endif()
endfunction()

cpscope_find_headers(fmt::fmt fmt/format.h "" cmeel-fmt)
target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY)
cpscope_find_headers(nlohmann_json::nlohmann_json nlohmann/json.hpp "" nlohmann-json)
cpscope_find_headers(Eigen3::Eigen Eigen/src/Core/ArithmeticSequence.h eigen3 cmeel-eigen)  # a file since Eigen 3.4
if(CPSCOPE_PROGRAM)
  cpscope_find_headers(CLI11::CLI11 CLI/CLI.hpp "")
endif()
cpscope_find_headers(tomlplusplus::tomlplusplus toml++/toml.h "")
if(NOT TARGET tomlplusplus::tomlplusplus)
  # No package of PyPI has it.
  message(STATUS "cpscope: toml++ is not installed (package libtomlplusplus-dev): fetching its archive")
  include(FetchContent)
  FetchContent_Declare(tomlplusplus
    URL https://github.com/marzer/tomlplusplus/archive/refs/tags/v3.4.0.tar.gz
    URL_HASH SHA256=8517f65938a4faae9ccf8ebb36631a38c1cadfb5efa85d9a72e15b9e97d25155
    TIMEOUT 60)
  FetchContent_MakeAvailable(tomlplusplus)
endif()
