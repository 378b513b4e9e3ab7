# Dear ImGui, libpng and zlib, linked into the program from their sources in CPSCOPE_DRAWING_SOURCES (gui/web/fetch brings them):
# for a program that must run on systems without them.
enable_language(C)

function(cpscope_add_foreign_library target folder)
  list(TRANSFORM ARGN PREPEND ${CPSCOPE_DRAWING_SOURCES}/${folder}/)
  add_library(${target} STATIC ${ARGN})
  target_include_directories(${target} SYSTEM PUBLIC ${CPSCOPE_DRAWING_SOURCES}/${folder})
  target_compile_options(${target} PRIVATE -w)
  set_target_properties(${target} PROPERTIES C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
endfunction()

cpscope_add_foreign_library(cpscope_zlib zlib adler32.c compress.c crc32.c deflate.c infback.c inffast.c inflate.c inftrees.c trees.c zutil.c)

cpscope_add_foreign_library(cpscope_png libpng1.6 png.c pngerror.c pngget.c pngmem.c pngpread.c pngread.c pngrio.c pngrtran.c pngrutil.c
  pngset.c pngtrans.c pngwio.c pngwrite.c pngwtran.c pngwutil.c)
configure_file(${CPSCOPE_DRAWING_SOURCES}/libpng1.6/scripts/pnglibconf.h.prebuilt ${CMAKE_CURRENT_BINARY_DIR}/png/pnglibconf.h COPYONLY)
target_include_directories(cpscope_png SYSTEM PUBLIC ${CMAKE_CURRENT_BINARY_DIR}/png)
# One code for all machines: pictures must not differ between them.
target_compile_definitions(cpscope_png PRIVATE PNG_ARM_NEON_OPT=0)
target_link_libraries(cpscope_png PUBLIC cpscope_zlib)
add_library(PNG::PNG ALIAS cpscope_png)
set(PNG_FOUND ON)

cpscope_add_foreign_library(cpscope_imgui imgui imgui.cpp imgui_draw.cpp imgui_tables.cpp imgui_widgets.cpp misc/cpp/imgui_stdlib.cpp)
target_include_directories(cpscope_imgui SYSTEM PUBLIC ${CPSCOPE_DRAWING_SOURCES}/imgui/misc/cpp)
