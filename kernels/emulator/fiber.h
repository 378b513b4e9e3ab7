#pragma once

#include <cstddef>
#include <memory>

namespace cpscope::kernels::emulator {

/// One flow of control with its own stack. Switching costs a few nanoseconds on x86-64 (own context
/// switch), more elsewhere (ucontext).
class Fiber {
 public:
  /// Bytes of stack. Pages that are never touched cost nothing.
  static constexpr size_t kStackBytes = size_t{256} * 1024;

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The next resume() begins with entry(argument), which must not return and must not throw. The
  /// fiber's earlier frames are discarded without being unwound.
  void start(void (*entry)(void*), void* argument);

  /// Called by the scheduler: runs the fiber until its next suspend().
  void resume();
  /// Called by the fiber: returns to the scheduler.
  void suspend();

  /// True if the fiber has stayed inside its stack so far.
  bool is_stack_intact() const;

 private:
  struct Context;
  std::unique_ptr<std::byte[]> stack_;
  std::unique_ptr<Context> context_;
};

}  // namespace cpscope::kernels::emulator
