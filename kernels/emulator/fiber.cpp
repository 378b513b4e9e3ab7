#include "kernels/emulator/fiber.h"

#include <cstdint>
#include <cstring>

#ifndef __x86_64__
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cpscope::kernels::emulator {
namespace {

constexpr uint64_t kGuardWord = 0x5ca1ab1e0ddba11;
constexpr size_t kGuardWords = 32;

/// Reports to the address sanitizer, if present, which stack is in use.
class StackNotes {
 public:
  /// Discards frames that were left without being unwound.
  static void forget_frames([[maybe_unused]] const std::byte* stack,
                            [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(stack, bytes);
#endif
  }

  void enter_fiber([[maybe_unused]] const std::byte* stack, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&scheduler_frames_, stack, bytes);
#endif
  }

  void entered_fiber() {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fiber_frames_, &scheduler_stack_, &scheduler_bytes_);
#endif
  }

  void leave_fiber() {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&fiber_frames_, scheduler_stack_, scheduler_bytes_);
#endif
  }

  void left_fiber() {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(scheduler_frames_, nullptr, nullptr);
#endif
  }

#ifdef __SANITIZE_ADDRESS__
 private:
  void* fiber_frames_ = nullptr;
  void* scheduler_frames_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_bytes_ = 0;
#endif
};

}  // namespace

#ifdef __x86_64__

// Saves the callee-saved registers and the stack pointer of the running flow, and loads those of
// another.
extern "C" void cpscope_switch_stack(void** saved_stack, void* next_stack);
asm(R"(
.text
.globl cpscope_switch_stack
.type cpscope_switch_stack, @function
cpscope_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cpscope_switch_stack, .-cpscope_switch_stack
)");

struct Fiber::Context {
  void* stack = nullptr;      // of the fiber, while it is suspended
  void* scheduler = nullptr;  // of its scheduler, while the fiber runs
  void (*entry)(void*) = nullptr;
  void* argument = nullptr;
  StackNotes notes;
};

namespace {

// The context whose fiber begins next. A global, because the first switch into a fiber passes no
// arguments.
thread_local void* starting_context = nullptr;

}  // namespace

void Fiber::start(void (*entry)(void*), void* argument) {
  context_->entry = entry;
  context_->argument = argument;
  context_->notes = {};
  StackNotes::forget_frames(stack_.get(), kStackBytes);
  auto top = reinterpret_cast<uintptr_t>(stack_.get() + kStackBytes) & ~uintptr_t{15};
  void** slot = reinterpret_cast<void**>(top);
  *--slot = nullptr;  // keeps the alignment that a called function expects
  void (*const first)() = [] {
    Context* context = static_cast<Context*>(starting_context);
    context->notes.entered_fiber();
    context->entry(context->argument);
  };
  *--slot = reinterpret_cast<void*>(first);
  constexpr int kSavedRegisters = 6;
  for (int i = 0; i < kSavedRegisters; ++i) *--slot = nullptr;
  context_->stack = slot;
}

void Fiber::resume() {
  starting_context = context_.get();
  context_->notes.enter_fiber(stack_.get(), kStackBytes);
  cpscope_switch_stack(&context_->scheduler, context_->stack);
  context_->notes.left_fiber();
}

void Fiber::suspend() {
  context_->notes.leave_fiber();
  cpscope_switch_stack(&context_->stack, context_->scheduler);
  context_->notes.entered_fiber();
}

#else

struct Fiber::Context {
  ucontext_t fiber;
  ucontext_t scheduler;
  void (*entry)(void*) = nullptr;
  void* argument = nullptr;
  StackNotes notes;
};

void Fiber::start(void (*entry)(void*), void* argument) {
  context_->entry = entry;
  context_->argument = argument;
  context_->notes = {};
  StackNotes::forget_frames(stack_.get(), kStackBytes);
  getcontext(&context_->fiber);
  context_->fiber.uc_stack.ss_sp = stack_.get();
  context_->fiber.uc_stack.ss_size = kStackBytes;
  context_->fiber.uc_link = nullptr;
  // makecontext passes only ints, so the pointer is passed in two halves.
  void (*const first)(unsigned, unsigned) = [](unsigned high, unsigned low) {
    Context* context = reinterpret_cast<Context*>(uintptr_t{high} << 32 | low);
    context->notes.entered_fiber();
    context->entry(context->argument);
  };
  const uint64_t address = reinterpret_cast<uintptr_t>(context_.get());
  makecontext(&context_->fiber, reinterpret_cast<void (*)()>(first), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
}

void Fiber::resume() {
  context_->notes.enter_fiber(stack_.get(), kStackBytes);
  swapcontext(&context_->scheduler, &context_->fiber);
  context_->notes.left_fiber();
}

void Fiber::suspend() {
  context_->notes.leave_fiber();
  swapcontext(&context_->fiber, &context_->scheduler);
  context_->notes.entered_fiber();
}

#endif

Fiber::Fiber()
    : stack_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)),
      context_(std::make_unique<Context>()) {
  for (size_t i = 0; i < kGuardWords; ++i)
    std::memcpy(stack_.get() + i * sizeof(kGuardWord), &kGuardWord, sizeof(kGuardWord));
}

Fiber::~Fiber() = default;

bool Fiber::is_stack_intact() const {
  for (size_t i = 0; i < kGuardWords; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, stack_.get() + i * sizeof(word), sizeof(word));
    if (word != kGuardWord) return false;
  }
  return true;
}

}  // namespace cpscope::kernels::emulator
