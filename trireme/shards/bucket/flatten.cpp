#include <trireme/shards/bucket/flatten.h>

#include <torch/utils.h>

#include <algorithm>

namespace trireme::bucket {
namespace {

bool same_kind(const at::Tensor& a, const at::Tensor& b, bool one_device) {
  return a.scalar_type() == b.scalar_type() && (one_device || a.device() == b.device()) &&
         a.requires_grad() == b.requires_grad();
}

} // namespace

FlatBuffers flatten(const NamedTensors& parameters, const LayoutOptions& options, const AllocateOn& allocate,
                    const FlatOptions& flat_options) {
  struct Kind {
    bool alone;
    NamedTensors parameters;
    std::vector<int64_t> places;
  };
  std::vector<Kind> kinds;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool alone = flat_options.alone && flat_options.alone(parameters[i].second);
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) {
      return !alone && !kind.alone &&
             same_kind(kind.parameters.front().second, parameters[i].second, flat_options.device.has_value());
    });
    Kind& kind = same == kinds.end() ? kinds.emplace_back(Kind{alone, {}, {}}) : *same;
    kind.parameters.push_back(parameters[i]);
    kind.places.push_back(flat_options.places.empty() ? static_cast<int64_t>(i) : flat_options.places[i]);
  }
  std::stable_partition(kinds.begin(), kinds.end(), [](const Kind& kind) { return !kind.alone; });
  FlatBuffers buffers;
  for (Kind& kind : kinds) {
    const at::Device device = flat_options.device.value_or(kind.parameters.front().second.device());
    const Allocate on_device = [allocate, device](int64_t numel, at::ScalarType type) {
      return allocate(numel, type, device);
    };
    FlatOptions placed = flat_options;
    placed.places = std::move(kind.places);
    buffers.push_back(std::make_unique<FlatParameters>(std::move(kind.parameters), options, on_device, placed));
  }
  return buffers;
}

} // namespace trireme::bucket
