#pragma once

#include <trireme/shards/bucket/extent.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace trireme::checkpoint {

/// A source of tensors that have memory only during lend(), such as a bucket of a StateStore: a save needs the memory
/// of one source at a time.
class Lender {
 public:
  virtual ~Lender() = default;
  /// Calls take(i, values) for each of its tensors, i = 0, 1, ...; the values are valid during that call. Exceptions of
  /// `take` pass through.
  using Take = std::function<void(int64_t i, const at::Tensor& values)>;
  virtual void lend(const Take& take) = 0;
  /// Announces a lend(), for prefetching.
  virtual void expect() {}
  /// The file and offset of tensor `i`'s bytes, valid until the next lend(); nullopt if they are in no file.
  virtual std::optional<bucket::Extent> extent(int64_t i) {
    (void)i;
    return std::nullopt;
  }
};

/// Elements [first, first + n) of tensor `i` of a lender. They belong to a tensor on the meta device, which has a type
/// and n elements but no memory.
struct Lent {
  std::shared_ptr<Lender> by = nullptr;
  int64_t i = 0;
  int64_t first = 0;
};

} // namespace trireme::checkpoint
