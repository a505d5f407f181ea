// The threads of a CUDA block as fibers of one thread of the CPU (cuda_runtime.h beside this file).

#include <cuda_runtime.h>

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace cuda_on_cpu {
namespace {

constexpr unsigned kMostThreads = 1024;
constexpr unsigned kWarp = 32;
constexpr size_t kStackBytes = size_t{64} << 10;

enum class State : char { ready, at_barrier, in_warp, done };

/// Stacks and contexts are kept from block to block.
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  uint32_t value = 0; // given to a warp's operation, then its result
};

std::vector<std::unique_ptr<Fiber>> fibers;
State states[kMostThreads];
const std::function<void()>* body;
ucontext_t host;
unsigned count;
unsigned current;

[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "cuda_on_cpu: %s (block %u, thread %u)\n", what, blockIdx.x, threadIdx.x);
  std::abort();
}

bool all_in(State state, unsigned first, unsigned last) {
  return std::all_of(states + first, states + last, [&](State s) { return s == state; });
}

void set_ready(unsigned first, unsigned last) {
  std::fill(states + first, states + last, State::ready);
}

/// count: none.
unsigned next_ready() {
  constexpr auto kReady = static_cast<int>(State::ready);
  const void* const found = blockIdx.x % 2 == 0 ? std::memchr(states, kReady, count) : memrchr(states, kReady, count);
  return found == nullptr ? count : static_cast<unsigned>(static_cast<const State*>(found) - states);
}

/// Goes on with the next thread; returns when the caller's turn has come again.
void leave(State state) {
  ucontext_t& here = fibers[current]->context;
  states[current] = state;
  unsigned next = next_ready();
  if (next == count && all_in(State::at_barrier, 0, count)) {
    set_ready(0, count);
    next = next_ready();
  }
  if (next == count) {
    if (!all_in(State::done, 0, count)) {
      stop("threads wait for others that went another way");
    }
    swapcontext(&here, &host);
    return;
  }
  current = next;
  threadIdx.x = next;
  if (&fibers[next]->context != &here) {
    swapcontext(&here, &fibers[next]->context);
  }
}

void run_fiber() {
  while (true) {
    (*body)();
    leave(State::done);
  }
}

void make_fibers() {
  while (fibers.size() < count) {
    auto fiber = std::make_unique<Fiber>();
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.get();
    fiber->context.uc_stack.ss_size = kStackBytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, run_fiber, 0);
    fibers.push_back(std::move(fiber));
  }
}

} // namespace

void run_grid(dim3 blocks, unsigned threads, const std::function<void()>& thread) {
  if (blocks.x == 0 || blocks.y == 0 || threads == 0 || threads > kMostThreads || threads % kWarp != 0) {
    stop("a grid that this stand-in does not run");
  }
  count = threads;
  body = &thread;
  gridDim.x = blocks.x;
  gridDim.y = blocks.y;
  blockDim.x = threads;
  make_fibers();
  for (unsigned b = 0; b < blocks.x * blocks.y; ++b) {
    blockIdx.x = b % blocks.x;
    blockIdx.y = b / blocks.x;
    set_ready(0, count);
    current = next_ready();
    threadIdx.x = current;
    swapcontext(&host, &fibers[current]->context);
  }
}

} // namespace cuda_on_cpu

void __syncthreads() {
  cuda_on_cpu::leave(cuda_on_cpu::State::at_barrier);
}

namespace cuda_on_cpu {
namespace {

/// All threads of a warp give a value; the last one calls `combine` with the 32, which become the results.
template <class F>
uint32_t in_warp(uint32_t mask, uint32_t value, const F& combine) {
  if (mask != 0xffffffffU) {
    stop("a warp's operation that not all of its threads take part in");
  }
  Fiber& own = *fibers[current];
  own.value = value;
  states[current] = State::in_warp;
  const unsigned first = current / kWarp * kWarp;
  if (!all_in(State::in_warp, first, first + kWarp)) {
    leave(State::in_warp);
    return own.value;
  }
  std::array<uint32_t, kWarp> values;
  for (unsigned t = 0; t < kWarp; ++t) {
    values[t] = fibers[first + t]->value;
  }
  combine(values);
  for (unsigned t = 0; t < kWarp; ++t) {
    fibers[first + t]->value = values[t];
  }
  set_ready(first, first + kWarp);
  leave(State::ready);
  return own.value;
}

} // namespace
} // namespace cuda_on_cpu

uint32_t __reduce_max_sync(uint32_t mask, uint32_t value) {
  return cuda_on_cpu::in_warp(mask, value, [](auto& values) { values.fill(*std::ranges::max_element(values)); });
}

float __shfl_xor_sync(uint32_t mask, float value, int distance) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = cuda_on_cpu::in_warp(mask, bits, [&](auto& values) {
    const auto given = values;
    for (unsigned t = 0; t < values.size(); ++t) {
      values[t] = given[(t ^ static_cast<unsigned>(distance)) % values.size()];
    }
  });
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}
