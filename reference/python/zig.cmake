# A compiler for other machines than this one: Zig's clang (package ziglang of PyPI), which has the headers and the symbols of older
# glibc versions and links its own C++ library. reference/python/wheels.py sets ZIG_TOOLS (a folder with zig, zig-ar and
# zig-ranlib), ZIG_TARGET (x86_64-linux-gnu.2.28) and HEADERS_ROOT, the only folder in which headers and packages are looked for.
string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR ${ZIG_TARGET})
if(ZIG_TARGET MATCHES "-macos")
  set(CMAKE_SYSTEM_NAME Darwin)
else()
  set(CMAKE_SYSTEM_NAME Linux)
endif()
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ZIG_TOOLS ZIG_TARGET HEADERS_ROOT)
set(CMAKE_C_COMPILER ${ZIG_TOOLS}/zig cc -target ${ZIG_TARGET})
set(CMAKE_CXX_COMPILER ${ZIG_TOOLS}/zig c++ -target ${ZIG_TARGET})
set(CMAKE_AR ${ZIG_TOOLS}/zig-ar)
set(CMAKE_RANLIB ${ZIG_TOOLS}/zig-ranlib)
set(CMAKE_FIND_ROOT_PATH ${HEADERS_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
