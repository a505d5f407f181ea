#include <trireme/device/cpu_allocator.h>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace trireme::device {
namespace {

constexpr size_t kAlignment = 64; // of vectors, as libtorch's

// malloc's block lies before the data, at most kAlignment bytes; its address is in the word before the data.
void*& block_of(void* data) {
  return static_cast<void**>(data)[-1];
}

void release(void* data) {
  if (data != nullptr) {
    std::free(block_of(data));
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
    static_assert(alignof(std::max_align_t) >= sizeof(void*));
    void* const data = static_cast<std::byte*>(block) + kAlignment - reinterpret_cast<uintptr_t>(block) % kAlignment;
    block_of(data) = block;
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
