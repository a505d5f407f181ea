// Zeros that take no memory before they are used.
#include <trireme/device/zero_pages.h>

#include <tests/support/sanitized.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <gmock/gmock.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <vector>

namespace trireme::device {
namespace {

constexpr int64_t kLarge = 16 << 20; // bytes

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t virtual_pages = 0, resident_pages = 0;
  file >> virtual_pages >> resident_pages;
  return resident_pages * ::sysconf(_SC_PAGESIZE);
}

TEST(ZeroPagesTest, AreZerosThatTakeMemoryWhenTheyAreWritten) {
  for (const int64_t numel : {int64_t{0}, int64_t{1}, int64_t{1} << 20, (int64_t{1} << 20) + 3, kLarge / 4}) {
    const at::Tensor zeros = zero_pages(numel, at::kFloat);
    EXPECT_EQ(zeros.numel(), numel);
    EXPECT_EQ(zeros.count_nonzero().item<int64_t>(), 0);
  }
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer has memory of its own";
  }
  const int64_t before = resident_bytes();
  at::Tensor zeros = zero_pages(kLarge / 4, at::kFloat);
  EXPECT_LT(resident_bytes() - before, kLarge / 4);
  zeros.fill_(1);
  EXPECT_GT(resident_bytes() - before, kLarge / 4 * 3);
  zeros = at::Tensor();
  EXPECT_LT(resident_bytes() - before, kLarge / 4);
}

// Neither begins nor ends at a page: what is beside it stays.
TEST(ZeroPagesTest, SharedMemoryIsSetToZeroWithoutBeingWritten) {
  void* const memory = ::mmap(nullptr, kLarge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const bytes = static_cast<char*>(memory);
  std::memset(bytes, 1, kLarge);
  const int64_t before = resident_bytes();
  device::zero(at::from_blob(bytes + 64, {kLarge - 192}, at::kByte));
  EXPECT_EQ(std::count(bytes, bytes + kLarge, 1), 192);
  EXPECT_EQ(std::count(bytes, bytes + 64, 1), 64);
  if (!test::kSanitized) { // reading has brought pages of zeros
    device::zero(at::from_blob(bytes, {kLarge}, at::kByte));
    EXPECT_LT(resident_bytes(), before - kLarge / 4 * 3);
  }
  ::munmap(memory, kLarge);
}

TEST(ZeroPagesTest, OtherMemoryIsWritten) {
  for (const int64_t bytes : {int64_t{100}, kLarge / 8}) {
    const at::Tensor memory = at::empty({bytes}, at::kByte);
    memory.fill_(1);
    device::zero(memory);
    EXPECT_EQ(memory.count_nonzero().item<int64_t>(), 0);
  }
}

} // namespace
} // namespace trireme::device
