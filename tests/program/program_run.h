#pragma once

#include <filesystem>
#include <string>

namespace cpscope::tests {

/// What one call of the program left behind.
struct ProgramRun {
  int exit_code = 0;
  std::string out;  // stdout
  std::string err;  // stderr
};

/// Runs the built program with these arguments (words of a shell line) in a folder of its own.
ProgramRun run_cpscope(const std::string& arguments);
/// The same with another copy of the program.
ProgramRun run_program(const std::filesystem::path& program, const std::string& arguments);

/// Writes a scenario file into that folder and returns its path.
std::string write_file(const std::string& name, const std::string& text);

/// All bytes of a file; fails the test when it cannot be read.
std::string read_text(const std::filesystem::path& path);

/// The folder that this process writes to; emptied at first use.
std::filesystem::path work_folder();

/// A small scenario; `extra` lines are appended to their tables: {"parallel", "cp_size = 3"} style
/// lines go in `parallel` and so on.
std::string small_scenario(const std::string& parallel = "cp_size = 4",
                           const std::string& batch = "lengths = [37, 0, 21]",
                           const std::string& attention = "",
                           const std::string& numerics = "dtype = \"fp64\"");

}  // namespace cpscope::tests
