#pragma once

#include <trireme/bucket/shard_plan.h>
#include <trireme/device/stream.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme::bucket {

/// What becomes of a flat buffer's gradients on a device whose buckets are stepped on the host.
struct HostGradientOptions {
  /// Of each bucket the elements of the flat buffer that this rank steps on the host; empty: the bucket is stepped on the device.
  std::vector<Range> ranges;
  at::ScalarType type = at::kFloat;
  at::Device device = at::kCPU;
  bool pinned = true;
  /// Sharded gradients are added up over micro-batches on the host, so that the device keeps none of them.
  bool add_up_there = false;
  /// Sets of buffers: with two, a step may still read its gradients while those of the next arrive.
  int sets = 1;
  /// Called with a bucket's values on the device before they leave, on the stream on which they do.
  std::function<void(int64_t bucket, const at::Tensor& values)> leaving = nullptr;
};

/// Gradients on their way from a device to pinned memory of its host, on a stream of their own: backward goes on meanwhile, and the host waits
/// for a bucket only when it steps it.
///
/// Memory of the host: the elements of `ranges`, for each set. Traffic: they once a step; with micro-batches that are added up there twice for each
/// but the first, because the device adds: nobody waits. Source: Ren et al. 2021, arXiv:2101.06840, section 4.
class HostGradients {
 public:
  explicit HostGradients(HostGradientOptions options);

  /// Whether the bucket is stepped on the host.
  bool has(int64_t b) const {
    return b < static_cast<int64_t>(options_.ranges.size()) && options_.ranges[b].numel() > 0;
  }
  const Range& range(int64_t b) const {
    return options_.ranges[b];
  }
  const HostGradientOptions& options() const {
    return options_;
  }
  /// Starts to bring `values`, [range(b).numel()] on the device, here; `adds` them to what is here of this step. They are read after what is on the current
  /// stream, and their memory may be freed at once, but not written before order_current_stream() or wait().
  void send(int64_t b, const at::Tensor& values, bool adds);
  /// Whether the bucket was sent since start_over().
  bool was_sent(int64_t b) const {
    return sent_[b];
  }
  /// Blocks until the bucket is here; elements `range` of the flat buffer, which lie in its range.
  at::Tensor wait(int64_t b, const Range& range, int set) const;
  /// The current stream goes on after all that was sent.
  void order_current_stream();
  /// Returns the number of the set that is filled now; the next gradients come to the other one, if there are two.
  int lend();
  /// A new step begins: what was sent does not count any more. The current stream goes on after it.
  void start_over();

 private:
  struct Arrival {
    at::Tensor values; // of the host, undefined before the first
    device::Event arrived;
  };

  HostGradientOptions options_;
  device::KeptStreams streams_;
  std::vector<std::vector<Arrival>> sets_; // by set and bucket
  std::vector<bool> sent_;
  int current_ = 0;
  device::Event last_; // of all that was sent
};

} // namespace trireme::bucket
