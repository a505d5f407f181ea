// Memory of tensors on the CPU: its place is used again, and what is not there is said.
#include <trireme/device/cpu_allocator.h>

#include <tests/support/sanitized.h>

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <malloc.h>

namespace trireme::device {
namespace {

class CpuAllocatorTest : public testing::Test {
 protected:
  CpuAllocatorTest() { install_cpu_allocator(); }
};

TEST_F(CpuAllocatorTest, BlocksAreAlignedAndApart) {
  std::vector<at::Tensor> tensors;
  for (int64_t size = 1; size < 300; ++size) {
    tensors.push_back(at::empty({size}, at::kByte));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors.back().data_ptr()) % 64, 0u);
    std::memset(tensors.back().data_ptr(), static_cast<int>(size % 251), static_cast<size_t>(size));
  }
  for (const at::Tensor& tensor : tensors) {
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      ASSERT_EQ(tensor.data_ptr<uint8_t>()[i], tensor.numel() % 251);
    }
  }
  EXPECT_EQ(at::empty({0}).data_ptr(), nullptr);
}

// As oneDNN frees its memory.
TEST_F(CpuAllocatorTest, MemoryOfTheAllocatorBeforeIsFreedToo) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer forbids to look before a block";
  }
  for (const size_t bytes : {1, 100, 10'000, 5'000'000}) {
    c10::GetCPUAllocator()->raw_deallocate(c10::GetDefaultCPUAllocator()->raw_allocate(bytes));
  }
}

// Tensors come and go, 100 at a time. With libtorch's own allocator the heap grows to 1.9 times what they need.
TEST_F(CpuAllocatorTest, FreedPlacesAreUsedAgain) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer has a malloc of its own";
  }
  constexpr int64_t kFloats = 10'000; // less than malloc would give back to the system
  const auto heap = [] { return static_cast<double>(mallinfo2().arena); };
  std::mt19937 random(1);
  std::vector<at::Tensor> tensors;
  const double before = heap();
  for (int i = 0; i < 10'000; ++i) {
    tensors.push_back(at::empty({kFloats}));
    if (tensors.size() > 100) {
      tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(random() % tensors.size()));
    }
  }
  EXPECT_LT(heap() - before, 1.2 * 101 * kFloats * sizeof(float));
}

TEST_F(CpuAllocatorTest, MoreThanThereIsIsAnError) {
  for (const int64_t bytes : {int64_t{1} << 60, INT64_MAX}) {
    try {
      at::empty({bytes}, at::kByte);
      FAIL() << bytes;
    } catch (const c10::OutOfMemoryError& error) {
      EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr(std::to_string(bytes) + " bytes"));
    }
  }
}

TEST_F(CpuAllocatorTest, RawMemoryAndCopiesAreOfTheSame) {
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  EXPECT_NE(allocator, c10::GetDefaultCPUAllocator());
  void* const raw = allocator->raw_allocate(1000);
  allocator->raw_deallocate(raw);
  const c10::DataPtr copy = allocator->clone("abcd", 4);
  EXPECT_EQ(std::memcmp(copy.get(), "abcd", 4), 0);
}

// Each test is a process of its own.
TEST(CpuAllocatorOfTheProgramTest, Stays) {
  static struct Own final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override { return c10::GetDefaultCPUAllocator()->allocate(bytes); }
    void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  } own;
  c10::SetCPUAllocator(&own);
  install_cpu_allocator();
  EXPECT_EQ(c10::GetCPUAllocator(), &own);
}

} // namespace
} // namespace trireme::device
