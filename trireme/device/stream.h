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
// interface. On the CPU work is finished when it starts, so all of it is a no-op.
namespace trireme::device {

/// The device itself, with the current device's index if `device` has none.
at::Device with_index(at::Device device);

/// Makes it the calling thread's current device; no effect for the CPU. Threads that use a device without this call
/// return to device 0 after each use, where CUDA makes a context of some hundred MB per process.
void make_current(at::Device device);

/// The current stream of the calling thread on that device.
c10::Stream current_stream(at::Device device);

/// Keeps the memory of `tensor` from being reused before the work that is on `stream` when the tensor is freed is done.
void record_stream(const at::Tensor& tensor, const c10::Stream& stream);

/// Allocates host memory that devices of this kind copy from and to asynchronously; plain memory for the CPU.
/// Uninitialised, 1-D. Cost: a driver call if the allocator has none to reuse.
at::Tensor pinned_host(int64_t numel, at::ScalarType type, at::DeviceType device);

/// One stream of the pool per device, taken at first use and kept. Thread-safe.
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

/// A mark in the work of a stream.
class Event {
 public:
  /// `timed`: also records the time, which costs the device a little more.
  explicit Event(at::DeviceType type, bool timed = false);

  /// Marks the work now on the stream.
  void record(const c10::Stream& stream);
  /// Makes later work on `stream` wait for the mark. Does not block the thread; no effect if never recorded.
  void block(const c10::Stream& stream) const;
  /// Blocks the thread until the device has reached the mark; counted by host_waits.h.
  void synchronize() const;
  /// Whether the device has reached the mark; true if never recorded.
  bool done() const;
  /// Device time in seconds from the other mark to this one; 0 on the CPU. Both must be timed, recorded on one device
  /// and done().
  double seconds_since(const Event& earlier) const;

 private:
  std::optional<c10::Event> event_; // none for the CPU
};

/// Makes a stream and its device the thread's current ones during its lifetime.
class OnStream {
 public:
  explicit OnStream(const c10::Stream& stream);
  /// What `stream` is given from now on comes after what is on the stream `after`.
  OnStream(const c10::Stream& stream, const c10::Stream& after);

 private:
  std::optional<c10::StreamGuard> guard_; // none for the CPU
};

} // namespace trireme::device
