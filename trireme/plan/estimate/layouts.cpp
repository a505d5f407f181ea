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

// The parameters of a stage, in the engine's order: gradients of parameters that stages share are final last, so they
// come first in the list that is reversed.
struct StageParameter {
  const Parameter* parameter;
  int64_t unit; // TensorInfo::kNoUnit: stays whole at stage 3
};

std::vector<StageParameter> parameters_of(const Run& run, int64_t stage) {
  const std::vector<int64_t> all = all_layers_of(run, stage);
  std::vector<StageParameter> parameters;
  for (const bool late : {true, false}) {
    for (const int64_t layer : all) {
      const Layer& described = run.model.layers[layer];
      if (owner_of(run, all, layer) != layer || late != (run.stages > 1 && !described.tie.empty())) {
        continue;
      }
      const bool in_unit = run.shards(3) && (run.layer_list || described.is_unit);
      for (const Parameter& parameter : described.parameters) {
        parameters.push_back({&parameter, in_unit ? layer : TensorInfo::kNoUnit});
      }
    }
  }
  std::vector<int64_t> sizes; // parameters in units
  for (const auto& [parameter, unit] : parameters) {
    if (unit != TensorInfo::kNoUnit) {
      sizes.push_back(parameter->numel);
    }
  }
  const std::vector<bool> persistent = zero::are_persistent(sizes, run.zero);
  auto stays = persistent.begin();
  for (StageParameter& one : parameters) {
    if (one.unit != TensorInfo::kNoUnit && *stays++) {
      one.unit = TensorInfo::kNoUnit;
    }
  }
  return parameters;
}

// A plan's search asks for thousands of layouts in which everything is trained.
bool has_frozen(const Run& run, int64_t stage) {
  return std::ranges::any_of(all_layers_of(run, stage), [&](int64_t layer) {
    return !std::ranges::all_of(run.model.layers[layer].parameters, &Parameter::trained);
  });
}

// `shards`: ranks that divide a bucket.
bucket::FlatLayout layout(const Run& run, std::vector<TensorInfo> tensors, int64_t shards) {
  std::vector<int64_t> order = bucket::buffer_order(tensors);
  bucket::LayoutOptions options;
  options.element_bytes = run.parameter_bytes();
  options.bucket_bytes = run.data_parallel.bucket_bytes;
  options.first_bucket_bytes = run.data_parallel.bytes_of_first_bucket();
  options.shards = shards;
  return bucket::FlatLayout(std::move(tensors), std::move(order), options);
}

// Layout of the trained parameters that the tensor axis has whole, of the others, or of all.
bucket::FlatLayout trained_layout(const Run& run, int64_t stage, std::optional<bool> whole) {
  std::vector<TensorInfo> tensors;
  for (const auto& [parameter, unit] : parameters_of(run, stage)) {
    if (parameter->trained && (!whole || parameter->whole == *whole)) {
      tensors.push_back({"", parameter->sizes(), unit});
    }
  }
  // Ranks that hold one copy; parameters that the tensor axis has whole are not subject to hybrid sharding.
  return layout(run, std::move(tensors),
                whole.value_or(false) ? run.whole_ranks()
                : run.shards(1)       ? run.shard_ranks()
                                      : run.gradient_ranks());
}

} // namespace

bucket::FlatLayout layout_of(const Run& run, int64_t stage) {
  return trained_layout(run, stage, {});
}

bucket::FlatLayout layout_of(const Run& run, int64_t stage, bool whole) {
  return trained_layout(run, stage, whole);
}

bucket::FlatLayout frozen_layout_of(const Run& run, int64_t stage) {
  if (!run.shards(3) || !has_frozen(run, stage)) {
    return {};
  }
  std::vector<TensorInfo> tensors;
  for (const auto& [parameter, unit] : parameters_of(run, stage)) {
    if (!parameter->trained && unit != TensorInfo::kNoUnit) {
      tensors.push_back({"", parameter->sizes(), unit});
    }
  }
  return layout(run, std::move(tensors), run.shard_ranks());
}

int64_t frozen_whole(const Run& run, int64_t stage) {
  if (!has_frozen(run, stage)) {
    return 0;
  }
  int64_t sum = 0;
  for (const auto& [parameter, unit] : parameters_of(run, stage)) {
    sum += !parameter->trained && unit == TensorInfo::kNoUnit ? parameter->numel : 0;
  }
  return sum;
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

std::vector<int64_t> units_of(const Run& run, int64_t stage, const std::vector<const bucket::FlatLayout*>& layouts) {
  const std::vector<int64_t> all = all_layers_of(run, stage);
  std::vector<bool> has_tensors(run.model.layers.size(), false);
  for (const bucket::FlatLayout* const layout : layouts) {
    for (const TensorInfo& tensor : layout->tensors()) {
      if (tensor.unit != TensorInfo::kNoUnit) {
        has_tensors[tensor.unit] = true;
      }
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

namespace {

int64_t sum_of_largest(std::vector<int64_t> sizes, int64_t count) {
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  return std::accumulate(sizes.begin(), sizes.begin() + std::min<std::ptrdiff_t>(count, std::ssize(sizes)), int64_t{0});
}

} // namespace

int64_t largest_buckets(const bucket::FlatLayout& layout, int64_t count) {
  std::vector<int64_t> sizes;
  for (const bucket::Bucket& bucket : layout.buckets()) {
    sizes.push_back(bucket.numel());
  }
  return sum_of_largest(std::move(sizes), count);
}

int64_t largest_units(const std::vector<const bucket::FlatLayout*>& layouts, int64_t count) {
  std::map<int64_t, int64_t> units;
  for (const bucket::FlatLayout* const layout : layouts) {
    for (const bucket::Bucket& bucket : layout->buckets()) {
      if (bucket.unit != TensorInfo::kNoUnit) {
        units[bucket.unit] += bucket.numel();
      }
    }
  }
  std::vector<int64_t> sizes;
  for (const auto& [unit, numel] : units) {
    sizes.push_back(numel);
  }
  return sum_of_largest(std::move(sizes), count);
}

std::vector<bucket::ChunkRun> chunks_of(const Run& run, const bucket::FlatLayout& layout, int64_t b, bool is_cut) {
  const bucket::Range part = bucket::shard_of(layout.buckets()[b], 0, run.shard_ranks());
  return bucket::chunk_runs(layout, b, part, is_cut ? offload::kChunkElements : part.numel());
}

} // namespace trireme::estimate
