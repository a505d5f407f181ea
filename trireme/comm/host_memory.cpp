#include <trireme/comm/host_memory.h>

#include <trireme/comm/shm/arena.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace trireme::comm {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr size_t kWorthIt = 4 << 20;

} // namespace

at::Tensor allocate_host(int64_t numel, at::ScalarType type) {
  const size_t bytes = static_cast<size_t>(numel) * c10::elementSize(type);
  if (bytes < kWorthIt) {
    return at::empty({numel}, at::TensorOptions(type));
  }
  const size_t whole = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, whole);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  ::madvise(memory, whole, MADV_HUGEPAGE); // advice: failure costs only speed
  return at::from_blob(memory, {numel}, [](void* gone) { std::free(gone); }, at::TensorOptions(type));
}

int64_t own_shared_bytes() {
  return shm::Arena::bytes_in_use();
}

} // namespace trireme::comm
