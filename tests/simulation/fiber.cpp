#include "fiber.h"

#include <cxxabi.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace trireme::simulation {
namespace {

constexpr size_t kStackBytes = 256 << 10;

// What the C++ runtime keeps of exceptions that are being handled: two words of each thread, so of each fiber.
using Exceptions = std::array<std::byte, 16>;

void exchange_exceptions(Exceptions& others) {
  void* const own = __cxxabiv1::__cxa_get_globals();
  Exceptions mine;
  std::memcpy(mine.data(), own, mine.size());
  std::memcpy(own, others.data(), others.size());
  others = mine;
}

class Stacks {
 public:
  void* take() {
    if (!free_.empty()) {
      void* const stack = free_.back();
      free_.pop_back();
      return stack;
    }
    void* const stack =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) {
      throw std::bad_alloc();
    }
    mprotect(stack, 4096, PROT_NONE); // an overflow ends the process and nothing else
    return stack;
  }
  void give_back(void* stack) { free_.push_back(stack); }

 private:
  std::vector<void*> free_;
};

Stacks& stacks() {
  thread_local Stacks all;
  return all;
}

} // namespace

struct Fiber::State {
  std::function<void()> program;
  void* stack = nullptr;
  ucontext_t own{};
  ucontext_t callers{};
  Exceptions exceptions{};
  bool ended = false;
#ifdef __SANITIZE_ADDRESS__
  const void* callers_stack = nullptr;
  size_t callers_bytes = 0;
#endif

  void to_fiber() {
#ifdef __SANITIZE_ADDRESS__
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stack, kStackBytes);
    swapcontext(&callers, &own);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    swapcontext(&callers, &own);
#endif
  }
  void to_caller() {
#ifdef __SANITIZE_ADDRESS__
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(ended ? nullptr : &fake, callers_stack, callers_bytes);
    swapcontext(&own, &callers);
    __sanitizer_finish_switch_fiber(fake, &callers_stack, &callers_bytes);
#else
    swapcontext(&own, &callers);
#endif
  }

  static void begin(unsigned high, unsigned low) {
    auto* const state = reinterpret_cast<State*>((static_cast<uintptr_t>(high) << 32) | low);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &state->callers_stack, &state->callers_bytes);
#endif
    state->program();
    state->ended = true;
    state->to_caller();
  }
};

Fiber::Fiber(std::function<void()> program) : state_(std::make_unique<State>()) {
  state_->program = std::move(program);
  state_->stack = stacks().take();
  getcontext(&state_->own);
  state_->own.uc_stack.ss_sp = state_->stack;
  state_->own.uc_stack.ss_size = kStackBytes;
  state_->own.uc_link = nullptr;
  const auto address = reinterpret_cast<uintptr_t>(state_.get());
  makecontext(&state_->own, reinterpret_cast<void (*)()>(&State::begin), 2, static_cast<unsigned>(address >> 32),
              static_cast<unsigned>(address));
}

Fiber::~Fiber() {
  stacks().give_back(state_->stack);
}

void Fiber::enter() {
  exchange_exceptions(state_->exceptions);
  state_->to_fiber();
  exchange_exceptions(state_->exceptions);
}

void Fiber::leave() {
  state_->to_caller();
}

bool Fiber::ended() const {
  return state_->ended;
}

} // namespace trireme::simulation
