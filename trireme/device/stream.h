#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

// Streams, events and pinned memory of any kind of device (CUDA, PrivateUse1, ...) through libtorch's generic
// interface. On the CPU work is done when it is begun, so everything here is a no-op.
namespace trireme::device {

/// The device itself, with the current one's number where `device` has none.
at::Device with_index(at::Device device);

/// Makes it the calling thread's current device from now on; the CPU changes nothing. Threads that use a device without
/// it go back to device 0 after each call, and CUDA makes a context there, some hundred MB a process.
void make_current(at::Device device);

/// The current stream of the calling thread on that device.
c10::Stream current_stream(at::Device device);

/// Keeps the memory of `tensor` from being used again before the work that is on `stream` when the tensor is freed is
/// done.
void record_stream(const at::Tensor& tensor, const c10::Stream& stream);

/// Allocates host memory that devices of this kind copy from and to without the host waiting; plain memory for the CPU.
/// Not initialised, 1-D. Cost: a call of the driver where the allocator has none to reuse.
at::Tensor pinned_host(int64_t numel, at::ScalarType type, at::DeviceType device);

/// The same for `bytes` bytes that begin on a page of 4096, as files want it.
at::Tensor pinned_pages(int64_t bytes, at::DeviceType device);

/// One stream of the pool for each device, taken at first use and kept. Any thread may ask.
class KeptStreams {
 public:
  c10::Stream on(at::Device device);

 private:
  std::mutex mutex_;
  std::map<at::Device, c10::Stream, bool (*)(const at::Device&, const at::Device&)> streams_{
      [](const at::Device& a, const at::Device& b) {
        return a.type() != b.type() ? a.type() < b.type() : a.index() < b.index();
      }};
};

/// A place in the work of a stream.
class Event {
 public:
  /// `timed`: it also takes the time; a little dearer for the device.
  explicit Event(at::DeviceType type, bool timed = false);

  /// Marks what is on the stream now.
  void record(const c10::Stream& stream);
  /// Lets work put on `stream` from now on wait for the mark. Does not block the thread; nothing to wait for if never
  /// recorded.
  void block(const c10::Stream& stream) const;
  /// Blocks the thread until the device has come past the mark; host_waits.h counts it.
  void synchronize() const;
  /// Whether the device has come past the mark; true if never recorded.
  bool done() const;
  /// Seconds of the device's clock from the other mark to this one; 0 on the CPU. Both are timed, recorded on one
  /// device and done().
  double seconds_since(const Event& earlier) const;

 private:
  std::optional<c10::Event> event_; // none for the CPU
};

/// Makes a stream, and its device, the thread's current one while the object lives.
class OnStream {
 public:
  explicit OnStream(const c10::Stream& stream);

 private:
  std::optional<c10::StreamGuard> guard_; // none for the CPU
};

} // namespace trireme::device
