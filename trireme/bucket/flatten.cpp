#include <trireme/bucket/flatten.h>

#include <torch/utils.h>

#include <algorithm>

namespace trireme::bucket {
namespace {

bool same_kind(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device() && a.requires_grad() == b.requires_grad();
}

} // namespace

FlatBuffers flatten(const NamedTensors& parameters, const LayoutOptions& options, const Allocate& allocate_host, const FlatOptions& flat_options) {
  std::vector<NamedTensors> kinds;
  for (const auto& named : parameters) {
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const NamedTensors& kind) { return same_kind(kind.front().second, named.second); });
    (same == kinds.end() ? kinds.emplace_back() : *same).push_back(named);
  }
  FlatBuffers buffers;
  for (NamedTensors& kind : kinds) {
    const at::Device device = kind.front().second.device();
    const Allocate on_device = [device](int64_t numel, at::ScalarType type) {
      return torch::empty({numel}, at::TensorOptions().dtype(type).device(device));
    };
    buffers.push_back(std::make_unique<FlatParameters>(std::move(kind), options, device.is_cpu() ? allocate_host : on_device, flat_options));
  }
  return buffers;
}

} // namespace trireme::bucket
