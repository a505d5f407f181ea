#pragma once

#include <trireme/bucket/extent.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace trireme::checkpoint {

/// Somebody whose tensors have memory only for a while, so that a save needs the memory of one lender and not of all: a
/// bucket of a StateStore.
class Lender {
 public:
  virtual ~Lender() = default;
  /// Calls take(i, values) for each of its tensors, i = 0, 1, ...; they have memory for the time of the call. What
  /// `take` throws passes through.
  using Take = std::function<void(int64_t i, const at::Tensor& values)>;
  virtual void lend(const Take& take) = 0;
  /// Says that lend() is near.
  virtual void expect() {}
  /// Where the bytes of tensor `i` lie in a file, for as long as lend() is not called; nullopt: nowhere.
  virtual std::optional<bucket::Extent> extent(int64_t i) {
    (void)i;
    return std::nullopt;
  }
};

/// Elements [first, first + n) of tensor `i` of a lender. The tensor that goes with it is on the meta device: it has a
/// type and n elements, and no memory.
struct Lent {
  std::shared_ptr<Lender> by = nullptr;
  int64_t i = 0;
  int64_t first = 0;
};

} // namespace trireme::checkpoint
