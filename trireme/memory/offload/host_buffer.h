#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace trireme::offload {

/// Host memory for the arrays of one bucket at a time, aligned for direct transfers. Tensors on it share its ownership
/// and may be destroyed on any thread.
class HostBuffer {
 public:
  /// `pinned_for`: devices of this kind copy from it asynchronously. It must not be freed while they do.
  explicit HostBuffer(int64_t bytes, at::DeviceType pinned_for = at::kCPU);

  std::byte* data() const;
  int64_t size() const;
  /// `numel` elements from byte `begin` on.
  at::Tensor view(int64_t begin, int64_t numel, at::ScalarType type) const;
  /// Whether a tensor on it still exists.
  bool is_held() const;

 private:
  struct Memory;
  std::shared_ptr<Memory> memory_;
};

} // namespace trireme::offload
