#include "tests/program/program_run.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cpscope::tests {

std::string read_text(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::filesystem::path work_folder() {
  static const std::filesystem::path kFolder = [] {
    auto path = std::filesystem::path(CPSCOPE_WORK_FOLDER) / ("run" + std::to_string(getpid()));
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
    return path;
  }();
  return kFolder;
}

std::string write_file(const std::string& name, const std::string& text) {
  const auto path = work_folder() / name;
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
}

ProgramRun run_cpscope(const std::string& arguments) {
  return run_program(CPSCOPE_PROGRAM, arguments);
}

ProgramRun run_program(const std::filesystem::path& program, const std::string& arguments) {
  const auto out = work_folder() / "stdout", err = work_folder() / "stderr";
  const std::string command = "cd '" + work_folder().string() + "' && '" + program.string() + "' " +
                              arguments + " >'" + out.string() + "' 2>'" + err.string() +
                              "' </dev/null";
  const int status = std::system(command.c_str());
  ProgramRun run;
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  run.out = read_text(out);
  run.err = read_text(err);
  return run;
}

std::string small_scenario(const std::string& parallel, const std::string& batch,
                           const std::string& attention, const std::string& numerics) {
  return "schema = 1\n[attention]\nheads = 4\nkv_heads = 2\nhead_dim = 8\n" + attention +
         "\n[batch]\n" + batch + "\n[parallel]\n" + parallel + "\n[numerics]\n" + numerics + "\n";
}

}  // namespace cpscope::tests
