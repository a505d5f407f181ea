#include <trireme/device/zero_pages.h>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <new>

namespace trireme::device {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr size_t kLargeBytes = 4 << 20;

size_t rounded_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

} // namespace

at::Tensor zero_pages(int64_t numel, at::ScalarType type) {
  const size_t bytes = static_cast<size_t>(numel) * c10::elementSize(type);
  if (bytes < kLargeBytes) {
    return at::zeros({numel}, at::TensorOptions(type));
  }
  const size_t used = rounded_up(bytes, kHugePage);
  const size_t mapped = used + kHugePage; // an aligned block begins in it
  void* const memory = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  void* const aligned = reinterpret_cast<void*>(rounded_up(reinterpret_cast<uintptr_t>(memory), kHugePage));
  ::madvise(aligned, used, MADV_HUGEPAGE); // advice: failure costs only speed
  return at::from_blob(
      aligned, {numel}, [memory, mapped](void*) { ::munmap(memory, mapped); }, at::TensorOptions(type));
}

void zero(const at::Tensor& memory) {
  const size_t bytes = memory.nbytes();
  if (memory.is_cpu() && bytes >= kLargeBytes) {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    auto* const begin = static_cast<std::byte*>(memory.mutable_data_ptr());
    auto* const first = reinterpret_cast<std::byte*>(rounded_up(reinterpret_cast<uintptr_t>(begin), page));
    const size_t before = static_cast<size_t>(first - begin);
    const size_t pages = (bytes - before) / page * page;
    if (::madvise(first, pages, MADV_REMOVE) == 0) { // only for shared memory
      std::memset(begin, 0, before);
      std::memset(first + pages, 0, bytes - before - pages);
      return;
    }
  }
  memory.detach().zero_();
}

} // namespace trireme::device
