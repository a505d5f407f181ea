#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme::bucket {

/// Allocates a flat buffer: elements and type. Group::allocate is one.
using Allocate = std::function<at::Tensor(int64_t, at::ScalarType)>;

/// Reuses the memory of temporary buckets (gradients being reduced, gathered parameters), so that a step neither asks
/// the system for pages nor waits for it to clear them.
///
/// Keeps at most `spare_bytes`; evicts the largest first, because they are the rarest. Not thread-safe.
class MemoryPool {
 public:
  MemoryPool(Allocate allocate, int64_t spare_bytes) : allocate_(std::move(allocate)), spare_bytes_(spare_bytes) {}

  /// At least `numel` elements, uninitialised.
  at::Tensor take(int64_t numel, at::ScalarType type);
  void give_back(at::Tensor memory);

 private:
  Allocate allocate_;
  int64_t spare_bytes_;
  std::vector<at::Tensor> spare_; // smallest first
};

} // namespace trireme::bucket
