#include "sim/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace cpscope {
namespace {

/// True on a thread that runs a for_each_index body: nested calls then run on this thread alone.
// Aligned as the sections that follow it: mold 1.10 may place a single byte at the end of the page
// before them, and takes its address for the begin of what is read-only; then no program starts.
alignas(16) thread_local bool is_worker = false;

}  // namespace

int default_thread_count() {
  if (const char* text = std::getenv("CPSCOPE_THREADS")) {
    const int asked = std::atoi(text);
    if (asked > 0) return std::min(asked, 1024);
  }
#ifdef __EMSCRIPTEN__
  return 1;  // a page opened from disk has no threads
#else
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#endif
}

void for_each_index(int64_t count, const std::function<void(int64_t)>& body, int threads) {
#ifdef __EMSCRIPTEN__
  threads = 1;
#endif
  if (is_worker) threads = 1;
  if (threads <= 0) threads = default_thread_count();
  const int64_t workers = std::min<int64_t>(threads, count);
  if (workers <= 1) {
    for (int64_t index = 0; index < count; ++index) body(index);
    return;
  }
#ifndef __EMSCRIPTEN__
  std::atomic<int64_t> next{0};
  std::exception_ptr first_failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    is_worker = true;
    try {
      for (int64_t index = next.fetch_add(1); index < count; index = next.fetch_add(1)) body(index);
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!first_failure) first_failure = std::current_exception();
      next.store(count);
    }
    is_worker = false;
  };
  std::vector<std::jthread> pool;
  try {
    for (int64_t worker = 1; worker < workers; ++worker) pool.emplace_back(work);
  } catch (const std::system_error&) {
    // If a limit prevents more threads, the threads that started do all of the work.
  }
  work();
  pool.clear();
  if (first_failure) std::rethrow_exception(first_failure);
#endif
}

}  // namespace cpscope
