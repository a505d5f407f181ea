#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// A device for tests that punishes what a GPU would punish, on the CPU: libtorch's PrivateUse1.
///
/// Its memory is a memory file mapped twice. data_ptr() points into a mapping without access, so the host crashes where
/// it touches device memory; kernels are the CPU's, on the other mapping. Every operation runs at once, but is checked
/// as if streams were asynchronous: vector clocks follow streams, events and host threads, and two accesses to the same
/// bytes that nothing orders are reported, as are frees without record_stream(). Timed events see a clock on which each
/// kernel takes a millisecond. A copy into pinned memory arrives when a thread of the host has waited for it, and not
/// before. It says nothing about speed, about CUDA's kernels, or about what several processes do to one device.
namespace trireme::sim {

/// Makes `devices` devices available to this process: once, after fork().
void start(int devices = 1);
c10::Device device(int index = 0);

/// Races, frees without record_stream(), pinned memory that is reused too early: a sentence each.
std::vector<std::string> problems();
void clear_problems();

/// How often a thread of the host has blocked until a device came past some work, and for what. Asking an event again
/// and again is not counted: what Work::wait() over the staged backend costs is not seen here.
int64_t host_synchronisations();
std::vector<std::string> host_synchronisation_names();
/// For each of them the kernels and copies that the waiting thread had launched behind the work that it waited for:
/// with none the device has nothing to do until the thread launches more.
std::vector<int64_t> launched_behind_host_synchronisations();
void reset_host_synchronisations();

/// Kernels and copies that were ever launched on the streams of a device.
int64_t launches(int device);

/// A kernel or copy on a clock on which each takes a millisecond. It begins when what is before it on its stream is
/// over, what the stream waits for is done, and the host, which takes no time but for its waits and host_works(), has
/// launched it. Streams are numbered by device, 16 each.
struct Span {
  std::string kernel;
  int stream;
  double begin;
  double end;
};
/// Keeps spans from now on, and forgets earlier ones.
void keep_spans(bool on);
std::vector<Span> spans();
/// Of the calling thread.
void host_works(double milliseconds);
double host_time();

/// An event is ready when it was asked this many times (default 1), or the host has waited for later work: polling code
/// has to go on.
void set_polls(int polls);

/// Bytes of a device's memory in use, and the most so far.
struct Memory {
  int64_t bytes = 0;
  int64_t peak = 0;
  int64_t fresh = 0; ///< blocks that no freed one could give; CUDA's allocator asks the driver then
};
Memory memory(int device = 0);
/// Of each device, at most 16 GiB; more in use is out of memory.
void set_memory_size(int64_t bytes);
/// Of the host's pinned memory for all devices, as CUDA's allocator would take it: in powers of two.
Memory pinned_memory();

/// Bytes that were copied between the host and all devices so far, and in how many copies.
struct Copied {
  int64_t to_device = 0;
  int64_t to_host = 0;
  int64_t copies_to_device = 0;
  int64_t copies_to_host = 0;
};
Copied copied();

/// For kernels of our own: where a kernel finds what `device_pointer` points to.
void* kernel_pointer(const void* device_pointer);
struct Touched {
  const void* pointer;
  int64_t bytes;
  bool writes;
};
/// Launches a kernel that touches these bytes of device memory on the current stream.
void launch(const char* kernel, const std::vector<Touched>& touched);
/// The same, and runs `work`, which is the kernel: again in each replay of a graph that records it.
void launch(const char* kernel, const std::vector<Touched>& touched, const std::function<void()>& work);

/// host_synchronisations() when the last optimizer kernel was launched.
int64_t host_synchronisations_before_optimizer();

/// Registers the CPU's optimizer kernels for the device: without it ATen's operations step the parameters, to other
/// last bits.
void use_cpu_optimizer_kernels();
/// The same for the passes of fused/: without them ATen's operations do their work on the device.
void use_cpu_row_kernels();
/// Gives the device graphs (trireme/device/graph.h). A capture refuses what CUDA refuses: waits of the host, work on
/// other streams, events of outside. It runs nothing, and a replay is one launch.
void use_graphs();

} // namespace trireme::sim
