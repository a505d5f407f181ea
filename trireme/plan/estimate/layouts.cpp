#include <trireme/plan/estimate/layouts.h>

#include <trireme/memory/offload/options.h>
#include <trireme/shards/bucket/buffer_order.h>
#include <trireme/shards/bucket/chunks.h>
#include <trireme/shards/bucket/shard_plan.h>
#include <trireme/shards/zero/persistence.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>

namespace trireme::estimate {
namespace {

using bucket::TensorInfo;

// The layer that owns the parameters of `layer`: itself, or the first of `layers` that shares them.
int64_t owner_of(const Run& run, const std::vector<int64_t>& layers, int64_t layer) {
  const std::string& tie = run.model.layers[layer].tie;
  if (tie.empty()) {
    return layer;
  }
  const auto first =
      std::find_if(layers.begin(), layers.end(), [&](int64_t other) { return run.model.layers[other].tie == tie; });
  return first == layers.end() ? layer : *first;
}

} // namespace

std::vector<std::vector<int64_t>> layers_of(const Run& run, int64_t stage) {
  std::vector<std::vector<int64_t>> chunks;
  for (int64_t chunk = 0; chunk < run.chunks; ++chunk) {
    const int64_t part = chunk * run.stages + stage;
    std::vector<int64_t>& layers = chunks.emplace_back(static_cast<size_t>(run.bounds[part + 1] - run.bounds[part]));
    std::iota(layers.begin(), layers.end(), run.bounds[part]);
  }
  return chunks;
}

namespace {

std::vector<int64_t> all_layers_of(const Run& run, int64_t stage) {
  std::vector<int64_t> all;
  for (const auto& chunk : layers_of(run, stage)) {
    all.insert(all.end(), chunk.begin(), chunk.end());
  }
  return all;
}

// Layout of the parameters that the tensor axis has whole, of the others, or of all.
bucket::FlatLayout layout(const Run& run, int64_t stage, std::optional<bool> whole) {
  const std::vector<int64_t> all = all_layers_of(run, stage);
  // In the engine's order: gradients of parameters that stages share are final last, so they come first in the list
  // that is reversed.
  std::vector<const Parameter*> parameters;
  std::vector<int64_t> layers; // of each one
  std::vector<bool> in_unit;
  for (const bool late : {true, false}) {
    for (const int64_t layer : all) {
      const Layer& described = run.model.layers[layer];
      if (owner_of(run, all, layer) != layer || late != (run.stages > 1 && !described.tie.empty())) {
        continue;
      }
      for (const Parameter& parameter : described.parameters) {
        parameters.push_back(&parameter);
        layers.push_back(layer);
        in_unit.push_back(run.shards(3) && (run.layer_list || described.is_unit));
      }
    }
  }
  std::vector<int64_t> sizes; // parameters in units
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (in_unit[i]) {
      sizes.push_back(parameters[i]->numel);
    }
  }
  const std::vector<bool> persistent = zero::are_persistent(sizes, run.zero);
  std::vector<TensorInfo> tensors;
  auto stays = persistent.begin();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool is_sharded = in_unit[i] && !*stays++;
    if (!whole || parameters[i]->whole == *whole) {
      tensors.push_back({"", parameters[i]->sizes(), is_sharded ? layers[i] : TensorInfo::kNoUnit});
    }
  }
  std::vector<int64_t> order = bucket::buffer_order(tensors);
  bucket::LayoutOptions options;
  options.element_bytes = run.parameter_bytes();
  options.bucket_bytes = run.data_parallel.bucket_bytes;
  options.first_bucket_bytes = run.data_parallel.bytes_of_first_bucket();
  // Ranks that hold one copy; parameters that the tensor axis has whole are not subject to hybrid sharding.
  options.shards = whole.value_or(false) ? run.whole_ranks() : run.shards(1) ? run.shard_ranks() : run.gradient_ranks();
  return bucket::FlatLayout(std::move(tensors), std::move(order), options);
}

} // namespace

bucket::FlatLayout layout_of(const Run& run, int64_t stage) {
  return layout(run, stage, {});
}

bucket::FlatLayout layout_of(const Run& run, int64_t stage, bool whole) {
  return layout(run, stage, whole);
}

std::vector<bucket::FlatLayout> layouts_of_units(const Run& run, int64_t stage) {
  const std::vector<int64_t> all = all_layers_of(run, stage);
  std::vector<bucket::FlatLayout> layouts;
  for (const int64_t layer : all) {
    const Layer& described = run.model.layers[layer];
    if (!run.shards(3) || !(run.layer_list || described.is_unit) || owner_of(run, all, layer) != layer ||
        described.parameters.empty()) {
      continue;
    }
    std::vector<TensorInfo> tensors;
    for (const Parameter& parameter : described.parameters) {
      tensors.push_back({parameter.name, parameter.sizes(), 0});
    }
    std::vector<int64_t> order = bucket::buffer_order(tensors);
    layouts.emplace_back(std::move(tensors), std::move(order),
                         bucket::LayoutOptions{.element_bytes = run.parameter_bytes(), .shards = run.gradient_ranks()});
  }
  return layouts;
}

std::vector<int64_t> units_of(const Run& run, int64_t stage, const bucket::FlatLayout& layout) {
  const std::vector<int64_t> all = all_layers_of(run, stage);
  std::vector<bool> has_tensors(run.model.layers.size(), false);
  for (const TensorInfo& tensor : layout.tensors()) {
    if (tensor.unit != TensorInfo::kNoUnit) {
      has_tensors[tensor.unit] = true;
    }
  }
  std::vector<int64_t> units(run.model.layers.size(), TensorInfo::kNoUnit);
  for (const int64_t layer : all) {
    const int64_t owner = owner_of(run, all, layer);
    units[layer] = has_tensors[owner] ? owner : TensorInfo::kNoUnit;
  }
  return units;
}

std::vector<pipeline::LayerSize> sizes_of(const Model& model) {
  std::vector<pipeline::LayerSize> sizes;
  for (const Layer& layer : model.layers) {
    int64_t parameters = 0;
    for (const Parameter& parameter : layer.parameters) {
      parameters += parameter.numel;
    }
    sizes.push_back({layer.type, parameters});
  }
  return sizes;
}

int64_t unit_elements(const bucket::FlatLayout& layout) {
  return layout.numel() - whole_elements(layout);
}

int64_t whole_elements(const bucket::FlatLayout& layout) {
  int64_t sum = 0;
  for (const bucket::Bucket& bucket : layout.buckets()) {
    sum += bucket.unit == TensorInfo::kNoUnit ? bucket.numel() : 0;
  }
  return sum;
}

int64_t largest_buckets(const bucket::FlatLayout& layout, int64_t count, bool units) {
  std::vector<int64_t> sizes;
  for (const bucket::Bucket& bucket : layout.buckets()) {
    if (!units || bucket.unit != TensorInfo::kNoUnit) {
      sizes.push_back(bucket.numel());
    }
  }
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  return std::accumulate(sizes.begin(), sizes.begin() + std::min<std::ptrdiff_t>(count, std::ssize(sizes)), int64_t{0});
}

std::vector<bucket::ChunkRun> chunks_of(const Run& run, const bucket::FlatLayout& layout, int64_t b, bool is_cut) {
  const bucket::Range part = bucket::shard_of(layout.buckets()[b], 0, run.shard_ranks());
  return bucket::chunk_runs(layout, b, part, is_cut ? offload::kChunkElements : part.numel());
}

} // namespace trireme::estimate
