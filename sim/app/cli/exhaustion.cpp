#include "sim/app/cli/exhaustion.h"

#include "sim/base/whole_file.h"
#include "sim/findings/error_document.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

#include <unistd.h>

namespace cpscope {

namespace {

bool asked_for_json = false;  // by the command line
std::terminate_handler usual_end = nullptr;

std::atomic<bool> memory_ran_out = false;

void write_now(int file, std::string_view words) {
  if (write(file, words.data(), words.size()) < 0) return;  // nobody is left to be told
}

/// Says that memory has run out and asks for none. Returns the exit code.
int say_exhausted() {
  constexpr std::string_view kWords = "cpscope: this machine has no memory left for the request\n";
  constexpr std::string_view kDocument =
      R"({"schema":1,"exit_code":3,"error":{"message":"this machine has no memory left for the )"
      R"(request","at":"","hint":"use fewer tokens, ranks or sequences"}})"
      "\n";
  write_now(STDERR_FILENO, kWords);
  if (asked_for_json && !ErrorDocument::has_printed()) write_now(STDOUT_FILENO, kDocument);
  return 3;
}

[[noreturn]] void end_exhausted() {
  remove_unfinished_file();
  std::_Exit(say_exhausted());
}

/// Libraries ask for memory where no exception may leave: in destructors, in threads of theirs,
/// in functions that are noexcept (then there may be no current exception, but one in flight).
[[noreturn]] void end_terminated() {
  try {
    if (std::current_exception() != nullptr) std::rethrow_exception(std::current_exception());
    if (memory_ran_out && std::uncaught_exceptions() > 0) end_exhausted();
  } catch (const std::bad_alloc&) {
    end_exhausted();
  } catch (...) {  // the usual end names it
  }
  usual_end();
  std::abort();
}

/// `operator new` calls this before it fails.
void note_exhausted() {
  memory_ran_out = true;
  throw std::bad_alloc();
}

/// Some libraries use memory that they did not get (nlohmann-json in destructors) or assert that
/// they got it (stb_truetype). Any other crash ends as it would have.
void name_crash(int number) {
  if (memory_ran_out || errno == ENOMEM) end_exhausted();
  std::signal(number, SIG_DFL);
  if (number == SIGABRT) std::raise(number);  // else the instruction fails once more
}

}  // namespace

int survive_exhaustion(int (*program)(int, char**), int argc, char** argv) {
  asked_for_json = asks_for_json(argc, argv);
  usual_end = std::set_terminate(end_terminated);
  std::set_new_handler(note_exhausted);
#ifndef __SANITIZE_ADDRESS__  // which has a handler of its own
  for (const int number : {SIGSEGV, SIGABRT}) std::signal(number, name_crash);
#endif
  try {
    return program(argc, argv);
  } catch (const std::bad_alloc&) {
    return say_exhausted();
  }
}

}  // namespace cpscope
