// A thread whose stack cannot be taken: the one that asks goes on.
#include <trireme/base/stacks.h>

#include <tests/support/sanitized.h>

#include <gmock/gmock.h>

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <thread>

namespace trireme {
namespace {

using testing::IsEmpty;
using testing::Not;

const auto kPage = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));

std::atomic<int64_t> thread_number{0};
std::atomic<bool> over{false};
/// The page with the frame of outer(), which whoever walks through the stack reads.
std::atomic<uintptr_t> outer_page{0};
std::atomic<bool> fault_may_end{false};
std::atomic<bool> faulted{false};

/// Stands in for whatever a walk through the stack may hang in (a lock of the loader, a page on a dead disk).
void hang_in_fault(int) {
  faulted = true;
  while (!fault_may_end) {
    usleep(1000);
  }
  mprotect(reinterpret_cast<void*>(outer_page.load()), kPage, PROT_READ | PROT_WRITE);
}

[[gnu::noinline]] void inner() {
  thread_number = static_cast<int64_t>(syscall(SYS_gettid));
  while (!over) {
  }
}

/// Far apart, so that nothing else lies on the page of outer()'s return address.
[[gnu::noinline]] void middle() {
  volatile char room[1 << 16];
  room[0] = 0;
  inner();
  room[sizeof room - 1] = 0;
}

[[gnu::noinline]] void outer() {
  outer_page = reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) / kPage * kPage;
  middle();
  asm volatile("" ::: "memory"); // not a jump: the frame stays
}

[[gnu::noinline]] void outermost() {
  volatile char room[1 << 16];
  room[0] = 0;
  outer();
  room[sizeof room - 1] = 0;
}

TEST(StacksTest, AThreadThatHangsWhileItsStackIsTakenIsGivenUp) {
  if (!test::kTakesStacks) {
    GTEST_SKIP() << "ThreadSanitizer runs signal handlers in its own way";
  }
  prepare_stack_capture();
  struct sigaction ours{};
  struct sigaction before{};
  ours.sa_handler = hang_in_fault;
  ASSERT_EQ(sigaction(SIGSEGV, &ours, &before), 0);
  std::thread spinning(outermost);
  while (thread_number == 0) {
    std::this_thread::yield();
  }
  ASSERT_EQ(mprotect(reinterpret_cast<void*>(outer_page.load()), kPage, PROT_NONE), 0);

  auto stuck = std::async(std::launch::async, [] { return capture_stack(thread_number); });
  const bool in_time = stuck.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  EXPECT_TRUE(in_time) << "it waits as long as the thread hangs";
  EXPECT_TRUE(faulted);
  // The next one is served meanwhile.
  std::atomic<int64_t> other_number{0};
  std::thread other([&] {
    other_number = static_cast<int64_t>(syscall(SYS_gettid));
    while (!over) {
      usleep(1000);
    }
  });
  while (other_number == 0) {
    std::this_thread::yield();
  }
  if (in_time) {
    EXPECT_THAT(stuck.get().frames, IsEmpty());
    EXPECT_THAT(capture_stack(other_number).frames, Not(IsEmpty()));
  }
  fault_may_end = true;
  if (!in_time) {
    stuck.wait();
  }
  std::vector<std::string> frames; // once it can be read again
  for (int attempt = 0; attempt < 1000 && frames.empty(); ++attempt) {
    frames = capture_stack(thread_number).frames;
  }
  EXPECT_THAT(frames, Not(IsEmpty()));
  over = true;
  spinning.join();
  other.join();
  sigaction(SIGSEGV, &before, nullptr);
}

} // namespace
} // namespace trireme
