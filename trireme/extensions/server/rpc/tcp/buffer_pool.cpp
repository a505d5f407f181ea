#include <trireme/extensions/server/rpc/tcp/buffer_pool.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace trireme::rpc::tcp {
namespace {

constexpr size_t kAlign = 64;
/// Largest number of unused bytes that the pool keeps.
constexpr size_t kMostFree = size_t{512} << 20;

} // namespace

BufferPool::Free::~Free() {
  for (const auto& [bytes, memory] : buffers) {
    std::free(memory);
  }
}

BufferPool::BufferPool() : free_(std::make_shared<Free>()) {}

std::shared_ptr<std::byte> BufferPool::take(size_t bytes) {
  size_t size = (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  std::byte* memory = nullptr;
  {
    const std::lock_guard lock(free_->mutex);
    const auto found = free_->buffers.lower_bound(size);
    if (found != free_->buffers.end() && found->first <= 2 * size) {
      size = found->first;
      memory = found->second;
      free_->bytes -= size;
      free_->buffers.erase(found);
    }
  }
  if (memory == nullptr) {
    memory = static_cast<std::byte*>(std::aligned_alloc(kAlign, size));
    if (memory == nullptr) {
      throw std::bad_alloc();
    }
  }
  return {memory, [free = free_, size](std::byte* back) {
            const std::lock_guard lock(free->mutex);
            if (free->bytes + size > kMostFree) {
              std::free(back);
            } else {
              free->buffers.emplace(size, back);
              free->bytes += size;
            }
          }};
}

} // namespace trireme::rpc::tcp
