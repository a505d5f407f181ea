#pragma once

#include <trireme/device/stream.h>
#include <trireme/shards/bucket/shard_plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme::bucket {

class StateStore;

/// How gradients are handled whose flat buffer is on a device and whose buckets are stepped on the host.
struct HostGradientOptions {
  /// For each bucket, the elements of the flat buffer that this rank steps on the host; empty: it is stepped on the
  /// device.
  std::vector<Range> ranges;
  at::ScalarType type = at::kFloat;
  at::Device device = at::kCPU;
  /// Keeps the gradients: in host memory that the device can copy to asynchronously, or in files with such memory for
  /// some buckets.
  std::shared_ptr<StateStore> store = nullptr;
  /// The first parameter of each bucket, for messages.
  std::vector<std::string> names = {};
  /// Sums sharded gradients over micro-batches on the host, so that the device keeps none of them.
  bool add_up_there = false;
  /// Number of buffers. Two: a step may read its gradients on another thread while those of the next arrive (double
  /// buffer). A store in files needs one.
  int sets = 1;
  /// Called with a bucket's values on the device before they are sent, on the stream that sends them.
  std::function<void(int64_t bucket, const at::Tensor& values)> leaving = nullptr;
};

/// Copies gradients from a device to a store of its host on their own stream, while backward continues. The host waits
/// for a bucket only when it steps it. With a store in files it also waits after some later buckets were sent, because
/// a bucket is written once it has arrived.
///
/// Host memory: the store's, for the elements of `ranges`, per set. Traffic: these elements once per step. With
/// micro-batches summed on the host, all but the first are copied twice, because the device adds; the host does not
/// wait. Files are read for each addition and for the step. Errors: the store's. Sources: Ren et al. 2021,
/// arXiv:2101.06840, section 4; Rajbhandari et al. 2021, arXiv:2104.07857, section 5.
class HostGradients {
 public:
  explicit HostGradients(HostGradientOptions options);

  /// Whether the bucket is stepped on the host.
  bool has(int64_t b) const {
    return b < static_cast<int64_t>(options_.ranges.size()) && options_.ranges[b].numel() > 0;
  }
  const Range& range(int64_t b) const { return options_.ranges[b]; }
  const HostGradientOptions& options() const { return options_; }
  /// Starts to copy `values`, [range(b).numel()] on the device, to the host; `adds` them to this step's earlier ones.
  /// They are read after the work on the current stream. Their memory may be freed at once, but not written before
  /// order_current_stream() or wait().
  void send(int64_t b, const at::Tensor& values, bool adds);
  /// Whether the bucket was sent since start_over().
  bool was_sent(int64_t b) const { return sent_[b]; }
  /// Blocks until the bucket is on the host. Returns elements `range` of the flat buffer, inside the bucket's range,
  /// read-only.
  at::Tensor wait(int64_t b, const Range& range, int set);
  /// Prefetches what wait() for this bucket needs.
  void prefetch(int64_t b);
  /// Orders the current stream after all that was sent.
  void order_current_stream();
  /// Returns the number of the set that is being filled; the next gradients fill the other one, if there are two.
  int lend();
  /// Starts a new step: earlier gradients are dropped. Orders the current stream after all that was sent.
  void start_over();

 private:
  // One set is filled while another thread may wait() for the other.
  struct Set {
    int64_t in_store = 0;                                      // our buffer number in the store
    std::vector<std::shared_ptr<const device::Event>> arrived; // by bucket; null before the first
    std::deque<int64_t> leaving;                               // buckets that are acquired and may not have arrived
  };

  void release_first(Set& set);
  void prefetch_after(int64_t b);

  HostGradientOptions options_;
  device::KeptStreams streams_;
  std::vector<Set> sets_;
  std::vector<bool> sent_;
  int current_ = 0;
  device::Event last_; // after all that was sent
};

} // namespace trireme::bucket
