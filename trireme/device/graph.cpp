#include <trireme/device/graph.h>

#include <exception>
#include <map>

namespace trireme::device {
namespace {

using MakePool = std::unique_ptr<GraphPool> (*)(at::Device);

std::map<at::DeviceType, MakePool>& graph_makers() {
  static std::map<at::DeviceType, MakePool> makers = {
#ifdef TRIREME_CUDA_GRAPHS
      {at::kCUDA, &make_cuda_graph_pool},
#endif
  };
  return makers;
}

} // namespace

std::string record(Graph& graph, const std::function<void()>& launch) {
  std::string why;
  try {
    graph.begin_capture();
    try {
      launch();
    } catch (const std::exception& error) {
      why = error.what();
    }
    graph.end_capture();
  } catch (const std::exception& error) {
    why = why.empty() ? error.what() : why;
  }
  return why.substr(0, why.find('\n'));
}

std::unique_ptr<GraphPool> make_graph_pool(at::Device device) {
  const auto found = graph_makers().find(device.type());
  return found == graph_makers().end() ? nullptr : found->second(device);
}

void register_graphs(at::DeviceType type, MakePool make) {
  graph_makers()[type] = make;
}

} // namespace trireme::device
