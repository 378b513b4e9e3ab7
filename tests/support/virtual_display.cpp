#include "tests/support/virtual_display.h"

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

namespace cpscope::tests {
namespace {

constexpr std::chrono::milliseconds kPatience{20};

std::vector<char*> to_argv(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  return argv;
}

}  // namespace

Process::Process(const std::vector<std::string>& words, const std::vector<std::string>& environment,
                 const std::string& in_folder) {
  const std::vector<char*> argv = to_argv(words);
  id_ = fork();
  if (id_ != 0) return;
  for (const std::string& setting : environment) putenv(const_cast<char*>(setting.c_str()));
  if (!in_folder.empty() && chdir(in_folder.c_str()) != 0) _exit(127);
  execvp(argv[0], argv.data());
  _exit(127);
}

Process::~Process() {
  if (code_ || id_ <= 0) return;
  kill(id_, SIGTERM);
  if (!wait(5)) {
    kill(id_, SIGKILL);
    wait(5);
  }
}

std::optional<int> Process::wait(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!code_) {
    int status = 0;
    if (waitpid(id_, &status, WNOHANG) == id_) {
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      break;
    }
    if (std::chrono::steady_clock::now() > end) return std::nullopt;
    std::this_thread::sleep_for(kPatience);
  }
  return code_;
}

VirtualDisplay::VirtualDisplay(int width, int height) {
  std::array<int, 2> pipe_ends{};
  if (pipe(pipe_ends.data()) != 0) return;
  const std::string screen = std::to_string(width) + "x" + std::to_string(height) + "x24";
  server_ = std::make_unique<Process>(
      std::vector<std::string>{"Xvfb", "-displayfd", std::to_string(pipe_ends[1]), "-screen", "0",
                               screen, "+extension", "GLX", "-nolisten", "tcp"},
      std::vector<std::string>{}, "");
  close(pipe_ends[1]);
  // The server picks a free number and reports it when it is ready.
  std::string number;
  char digit = 0;
  while (read(pipe_ends[0], &digit, 1) == 1 && digit != '\n') number += digit;
  close(pipe_ends[0]);
  if (!number.empty()) name_ = ":" + number;
}

std::string VirtualDisplay::hand(const std::string& words) const {
  const std::string command = "DISPLAY=" + name_ + " xdotool " + words + " 2>&1";
  std::string output;
  FILE* stream = popen(command.c_str(), "r");
  if (stream == nullptr) return output;
  std::array<char, 256> part{};
  while (fgets(part.data(), part.size(), stream) != nullptr) output += part.data();
  pclose(stream);
  return output;
}

bool has_program(const std::string& name) {
  return std::system(("command -v " + name + " > /dev/null 2>&1").c_str()) == 0;
}

}  // namespace cpscope::tests
