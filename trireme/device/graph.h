#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>

namespace trireme::device {

/// Launches of a device, recorded once and replayed as one launch: a CUDA graph. A replay runs the recorded kernels on
/// the recorded memory, so whatever changes between replays must be read from device memory, and host code between the
/// launches does not run again. Random numbers of the device's default generator continue in each replay.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Records what is launched on the current stream, which must not be the default one, until end_capture(); nothing of
  /// it runs. The host may not wait for the device in between, and memory comes from the graph's pool. Errors:
  /// c10::Error of the launch or wait that cannot be recorded.
  virtual void begin_capture() = 0;
  /// Errors: c10::Error if the recording is invalid. Call it also after a failure in between.
  virtual void end_capture() = 0;
  /// Launches the recording on the current stream. Does not wait.
  virtual void replay() = 0;
};

/// The memory that graphs allocate while they are recorded. It stays reserved for their replays, and graphs of one pool
/// share it: replay them one after another on one stream.
class GraphPool {
 public:
  virtual ~GraphPool() = default;
  /// Makes an empty graph. It must not outlive the pool.
  virtual std::unique_ptr<Graph> graph() = 0;
};

/// Records what launch() launches. Returns the first line of what went wrong, in launch() or in the recording; "":
/// nothing did. Never leaves a recording open.
std::string record(Graph& graph, const std::function<void()>& launch);

/// Returns an empty pool; null if this kind of device has no graphs.
std::unique_ptr<GraphPool> make_graph_pool(at::Device device);

/// Sets how a kind of device makes pools; for devices that have no row in graph.cpp.
void register_graphs(at::DeviceType type, std::unique_ptr<GraphPool> (*make)(at::Device device));

/// Row of graph.cpp's table in builds for CUDA.
std::unique_ptr<GraphPool> make_cuda_graph_pool(at::Device device);

} // namespace trireme::device
