#include <trireme/device/cpu_allocator.h>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace trireme::device {
namespace {

constexpr size_t kAlignment = 64; // of vectors, as libtorch's

// malloc's block begins 16 to kAlignment bytes before the data. The two words before the data are its address and a
// check of it.
struct Before {
  uintptr_t check;
  void* block;

  static Before& of(void* data) { return static_cast<Before*>(data)[-1]; }
  static uintptr_t check_of(void* block) { return reinterpret_cast<uintptr_t>(block) ^ 0x7472697265'6d65; }
};
static_assert(sizeof(Before) <= alignof(std::max_align_t));

// Also called with memory that libtorch's allocator gave before: oneDNN frees by what is installed then.
void release(void* data) {
  if (data != nullptr) {
    const Before before = Before::of(data);
    c10::profiledCPUMemoryReporter().Delete(data); // a lookup; libtorch's profiler sees memory as with its allocator
    std::free(before.check == Before::check_of(before.block) ? before.block : data);
  }
}

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) {
      return {nullptr, nullptr, &release, cpu};
    }
    void* const block = bytes < PTRDIFF_MAX - kAlignment ? std::malloc(bytes + kAlignment) : nullptr;
    TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr, "there is no memory for a tensor of ", bytes, " bytes");
    void* const data = static_cast<std::byte*>(block) + kAlignment - reinterpret_cast<uintptr_t>(block) % kAlignment;
    Before::of(data) = {Before::check_of(block), block};
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

} // namespace

void install_cpu_allocator() {
  static CpuAllocator allocator;
  if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) {
    c10::SetCPUAllocator(&allocator);
  }
}

} // namespace trireme::device
