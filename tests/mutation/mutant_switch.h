#pragma once

#include <cstdlib>
#include <type_traits>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/// The switch of a tree with mutants built in (mutants.py); no part of any other build.
/// CPSCOPE_MUTANT=k makes mutant k come true; CPSCOPE_MUTANT_REACHED=FILE, a file of kMaxMutants
/// bytes, gets a 1 at byte k for each mutant k that is come by, child processes included.
namespace cpscope_mutation {

inline constexpr size_t kMaxMutants = 8192;

inline volatile unsigned char* open_reached() {
  const char* path = std::getenv("CPSCOPE_MUTANT_REACHED");
  const int file = path == nullptr ? -1 : open(path, O_RDWR);
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* memory = mmap(nullptr, kMaxMutants, PROT_READ | PROT_WRITE, flags, file, 0);
  if (file >= 0) close(file);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<volatile unsigned char*>(memory);
}

inline int read_active() {
  const char* text = std::getenv("CPSCOPE_MUTANT");
  return text == nullptr ? 0 : std::atoi(text);
}

inline bool is_on_now(int number) {
  static volatile unsigned char* const reached = open_reached();
  static const int active = read_active();
  reached[number] = 1;
  return number == active;
}

/// What the compiler works out keeps to the original.
constexpr bool is_on(int number) {
  if (std::is_constant_evaluated()) return false;
  return is_on_now(number);
}

}  // namespace cpscope_mutation

#define CPSCOPE_MUTANT(number) ::cpscope_mutation::is_on(number)
