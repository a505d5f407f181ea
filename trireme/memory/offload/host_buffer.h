#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace trireme::offload {

/// Memory of the host for the arrays of one bucket at a time, aligned for direct transfers. Tensors on it keep it, and
/// may end on any thread.
class HostBuffer {
 public:
  /// `pinned_for`: devices of this kind copy from it without the host waiting. Such memory must not end while they do.
  explicit HostBuffer(int64_t bytes, at::DeviceType pinned_for = at::kCPU);

  std::byte* data() const;
  int64_t size() const;
  /// Elements from byte `begin` on.
  at::Tensor view(int64_t begin, int64_t numel, at::ScalarType type) const;
  /// Whether any tensor on it is left.
  bool is_held() const;

 private:
  struct Memory;
  std::shared_ptr<Memory> memory_;
};

} // namespace trireme::offload
