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

/// What becomes of a flat buffer's gradients on a device whose buckets are stepped on the host.
struct HostGradientOptions {
  /// Of each bucket the elements of the flat buffer that this rank steps on the host; empty: the bucket is stepped on
  /// the device.
  std::vector<Range> ranges;
  at::ScalarType type = at::kFloat;
  at::Device device = at::kCPU;
  /// Where they are: in memory of the host that the device copies to by itself, or in files that have such memory for
  /// some buckets.
  std::shared_ptr<StateStore> store = nullptr;
  /// The first parameter of each bucket, for messages.
  std::vector<std::string> names = {};
  /// Sharded gradients are added up over micro-batches on the host, so that the device keeps none of them.
  bool add_up_there = false;
  /// Sets of buffers: with two, a step may still read its gradients, on another thread, while those of the next arrive.
  /// One for a store in files.
  int sets = 1;
  /// Called with a bucket's values on the device before they leave, on the stream on which they do.
  std::function<void(int64_t bucket, const at::Tensor& values)> leaving = nullptr;
};

/// Gradients on their way from a device to a store of its host, on a stream of their own: backward goes on meanwhile,
/// and the host waits for a bucket only when it steps it, or, where the store has them in files, when some later ones
/// have left: a bucket is written when it has arrived.
///
/// Memory of the host: what the store has for the elements of `ranges`, for each set. Traffic: they once a step; with
/// micro-batches that are added up there twice for each but the first, because the device adds: nobody waits. Files are
/// read as often as something is added, and for the step. Errors: the store's. Sources: Ren et al. 2021,
/// arXiv:2101.06840, section 4; Rajbhandari et al. 2021, arXiv:2104.07857, section 5.
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
  /// Starts to bring `values`, [range(b).numel()] on the device, here; `adds` them to what is here of this step. They
  /// are read after what is on the current stream, and their memory may be freed at once, but not written before
  /// order_current_stream() or wait().
  void send(int64_t b, const at::Tensor& values, bool adds);
  /// Whether the bucket was sent since start_over().
  bool was_sent(int64_t b) const {
    return sent_[b];
  }
  /// Blocks until the bucket is here; elements `range` of the flat buffer, which lie in its range, to be read.
  at::Tensor wait(int64_t b, const Range& range, int set);
  /// Says that wait() for this bucket is near.
  void prefetch(int64_t b);
  /// The current stream goes on after all that was sent.
  void order_current_stream();
  /// Returns the number of the set that is filled now; the next gradients come to the other one, if there are two.
  int lend();
  /// A new step begins: what was sent does not count any more. The current stream goes on after it.
  void start_over();

 private:
  // A step's own: another thread may wait() in one while the other is filled.
  struct Set {
    int64_t in_store = 0;                                      // our number there
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
  device::Event last_; // of all that was sent
};

} // namespace trireme::bucket
