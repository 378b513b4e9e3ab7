#pragma once

#include <cstddef>
#include <memory>

namespace cpscope::kernels::emulator {

/// One flow of control with a stack of its own. Switching costs a few nanoseconds on x86-64 (own
/// context switch), more elsewhere (ucontext).
class Fiber {
 public:
  /// Bytes of stack. Pages that are never touched cost nothing.
  static constexpr size_t kStackBytes = size_t{256} * 1024;

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The next resume() begins with entry(argument), which must not return and must not let an
  /// exception out. What the fiber did before is forgotten without being unwound.
  void start(void (*entry)(void*), void* argument);

  /// Called by the scheduler: runs the fiber until its next suspend().
  void resume();
  /// Called by the fiber: returns to the scheduler.
  void suspend();

  /// Did the fiber stay inside its stack so far?
  bool is_stack_intact() const;

 private:
  struct Context;
  std::unique_ptr<std::byte[]> stack_;
  std::unique_ptr<Context> context_;
};

}  // namespace cpscope::kernels::emulator
