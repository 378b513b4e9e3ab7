#pragma once

#include <string>
#include <vector>

namespace cpscope::house {

/// One file of the tree; `path` is relative to the root, with '/'.
struct SourceFile {
  std::string path;
  std::vector<std::string> lines;

  bool is_header() const;  // .h or .cuh
  bool is_code() const;    // C++, CUDA, Python, shell, CMake
  bool is_cpp() const;     // C++ or CUDA
};

/// Every file below `root` that belongs to the project: no version control, no build folders, no
/// output, nothing that is not text.
std::vector<SourceFile> load_tree(const std::string& root);

// Each rule returns one line per violation: "path:line: what is wrong".

/// sim includes sim alone; reference, kernels and gui include themselves and sim without sim/app;
/// no room includes tests. Only sim/app/main.cpp and page_main.cpp see every room. Within sim,
/// kernels and gui a folder includes those below it alone.
std::vector<std::string> find_wrong_directions(const std::vector<SourceFile>& files);

/// Files of sim, kernels and gui lie in the folders of which that is known.
std::vector<std::string> find_homeless_files(const std::vector<SourceFile>& files);

/// Quoted includes begin with a room and name a file of the tree.
std::vector<std::string> find_unknown_includes(const std::vector<SourceFile>& files);

/// No header of sim includes Eigen, CUDA, NCCL, ImGui or a window library.
std::vector<std::string> find_foreign_headers(const std::vector<SourceFile>& files);

/// No file names a place on somebody's machine.
std::vector<std::string> find_absolute_paths(const std::vector<SourceFile>& files);

/// No code file has `limit` lines or more.
std::vector<std::string> find_long_files(const std::vector<SourceFile>& files, size_t limit);

/// Every header begins with #pragma once, after comments.
std::vector<std::string> find_unguarded_headers(const std::vector<SourceFile>& files);

/// No loop ranges over a part of a call's result that a second call, or an index by name, gives: the
/// result may be gone when the loop begins.
std::vector<std::string> find_lost_ranges(const std::vector<SourceFile>& files);

/// Sixteen hexadecimal digits that change with any line of what runs on a GPU: FNV-1a of the paths
/// and lines of kernels/'s sources, emulator left out, in order of path.
/// reference/python/gpu_summary.py puts the same into its summaries.
std::string hash_kernels(const std::vector<SourceFile>& files);

/// Empty where some evidence from a GPU is of these kernels; else the last one by name, which is
/// not.
std::string find_stale_evidence(const std::vector<SourceFile>& files);

/// No two headers define types of one name in one namespace: the linker would take either for both.
std::vector<std::string> find_twin_types(const std::vector<SourceFile>& files);

}  // namespace cpscope::house
