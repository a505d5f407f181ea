#include <trireme/engine/build_buffers.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/device/absent_memory.h>
#include <trireme/device/move.h>
#include <trireme/engine/make_store.h>
#include <trireme/engine/offload_room.h>
#include <trireme/engine/placements.h>
#include <trireme/parallel/tensor/exchange.h>
#include <trireme/precision/cast.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace trireme::engine {
namespace {

// Lists the trained parameters, those whose gradients are final last first: flat buffers reverse the list, and buckets
// start in that order.
bucket::NamedTensors trained_parameters(const Parts& parts) {
  bucket::NamedTensors parameters = parallel::trainable_parameters(*parts.model.module, parts.ranks.pipe.size() > 1);
  if (parts.model.layers) {
    const pipeline::Tensors late = parts.model.layers->late_parameters();
    std::stable_partition(parameters.begin(), parameters.end(), [&](const auto& named) {
      return std::any_of(late.begin(), late.end(),
                         [&](const at::Tensor& parameter) { return parameter.is_same(named.second); });
    });
  }
  return parameters;
}

std::vector<bucket::FlatParameters*> all_buffers(const Parts& parts) {
  std::vector<bucket::FlatParameters*> all = parallel::pointers_to(parts.buffers.trained);
  const std::vector<bucket::FlatParameters*> frozen = parallel::pointers_to(parts.buffers.frozen);
  all.insert(all.end(), frozen.begin(), frozen.end());
  return all;
}

// Frozen parameters need a flat buffer only to be sharded.
bucket::NamedTensors frozen_in_units(const torch::nn::Module& model, const zero::ModelUnits& units) {
  bucket::NamedTensors found;
  for (const auto& item : model.named_parameters()) {
    const auto same = [&](const auto& known) { return known.second.is_same(item.value()); };
    if (!item.value().requires_grad() && units.unit_of(item.value()) != bucket::TensorInfo::kNoUnit &&
        std::none_of(found.begin(), found.end(), same)) {
      found.emplace_back(item.key(), item.value());
    }
  }
  return found;
}

// zero::Init has already copied the first rank's values to all data ranks.
void refuse_early_shards_of_some_ranks(const torch::nn::Module& model, const InitializeOptions& options) {
  for (const auto& item : model.named_parameters()) {
    if (options.placement && !device::has_memory(item.value()) &&
        options.placement(item.key(), item.value()).reduce_group != 0) {
      throw InputError("engine",
                       concat("parameter \"", item.key(),
                              "\" has its own reduce_group, but zero::Init has sharded it among all data ranks"),
                       "Build its module after zero::Init has ended.");
    }
  }
}

// Warns if stage 3 is no better than stage 2.
void warn_of_whole_parameters(const Parts& parts, const zero::ModelUnits& units, const config::EngineConfig& config) {
  int64_t whole = 0;
  for (const at::Tensor& parameter : parts.model.module->parameters()) {
    const bool small = parameter.numel() < config.zero.param_persistence_threshold;
    whole += !small && units.unit_of(parameter) == bucket::TensorInfo::kNoUnit ? parameter.numel() : 0;
  }
  if (whole > 0 && parts.ranks.everyone.rank() == 0) {
    log::warning("ZeRO stage 3 shards ", units.sharded_elements(), " elements of parameters. ", whole,
                 " more stay whole on every rank, because their modules are not zero::Sharded. Make these modules "
                 "zero::Sharded, or the model a list of layers.");
  }
}

// Copies the first rank's `values` of the buffer to the ranks of its reduce group, and to tensor ranks that have them
// whole.
void agree_on(const Parts& parts, const bucket::FlatParameters& buffer, const at::Tensor& values) {
  parts.agreement.sync->groups().of(buffer).broadcast(values, 0, "parameters").wait();
  if (parts.ranks.tensor.size() > 1 && !parts.agreement.whole.is_sum &&
      parts.agreement.whole.has(buffer.reduce_group())) { // otherwise the reduce group has done it
    parts.ranks.tensor.broadcast(values, 0, "parameters").wait();
  }
}

// The same among tensor ranks for a tensor that is not trained: a frozen parameter, which lies in a flat buffer with
// split ones or in none, or a module buffer.
void agree_on_untrained(const Parts& parts, const at::Tensor& tensor) {
  if (!tensor.requires_grad() && parts.ranks.tensor.size() > 1 &&
      parts.model.split.count(tensor.unsafeGetTensorImpl()) == 0 && device::has_memory(tensor)) {
    at::Tensor values = tensor.detach().contiguous();
    parts.ranks.tensor.broadcast(values, 0, "frozen parameter or module buffer").wait();
    tensor.detach().copy_(values);
  }
}

// The same for a bucket that is sharded afterwards.
void agree_on_bucket(const Parts& parts, bucket::FlatParameters& buffer, int64_t b) {
  const torch::NoGradGuard no_grad;
  agree_on(parts, buffer, buffer.bucket_data(b));
  const bucket::Bucket& bucket = buffer.layout().buckets()[b];
  for (int64_t slot = bucket.first_slot; slot < bucket.last_slot; ++slot) {
    agree_on_untrained(parts, buffer.parameter(buffer.layout().slots()[slot].tensor));
  }
}

// The same for everything that is not sharded.
void agree_on_whole(const Parts& parts) {
  const torch::NoGradGuard no_grad;
  for (const auto& buffer : parts.buffers.trained) {
    if (!buffer->parameters_are_sharded()) {
      agree_on(parts, *buffer, buffer->flat_data());
    }
  }
  parallel::broadcast_untrained(*parts.model.module, parts.ranks.group);
  for (const auto& tensors : {parts.model.module->parameters(), parts.model.module->buffers()}) {
    for (const at::Tensor& tensor : tensors) {
      agree_on_untrained(parts, tensor);
    }
  }
}

// A lower bound.
ShardBytes bytes_of_shards(const Parts& parts, const zero::ModelUnits& units, const bucket::FlatOptions& sharding,
                           const offload::ParameterOptions& parameters) {
  const auto type_bytes =
      static_cast<int64_t>(c10::elementSize(precision::scalar_type(parts.settings.precision.compute)));
  ShardBytes bytes;
  bytes.parameters =
      std::max<int64_t>(0, units.sharded_elements() / sharding.size - parameters.max_in_cpu) * type_bytes;
  if (sharding.gradient_store) {
    for (const auto& [name, parameter] : trained_parameters(parts)) {
      bytes.gradients +=
          parameter.numel() * static_cast<int64_t>(c10::elementSize(*sharding.gradient_type)) / sharding.size;
    }
  }
  return bytes;
}

// Counts a parameter in equal shares on the ranks that have its elements.
void count_parameters(Parts& parts) {
  std::map<const void*, double> trained;
  for (const auto& buffer : parts.buffers.trained) {
    for (int64_t i = 0; i < buffer->count(); ++i) {
      const bucket::TensorInfo& tensor = buffer->layout().tensors()[i];
      const bool elsewhere = !tensor.placement.counts_in_norm && parts.ranks.tensor.rank() > 0;
      const bool is_box_of_all = buffer->reduce_group() == 0 && parts.ranks.tensor.size() == 1 &&
                                 parts.model.split.empty() &&
                                 tensor.placement.tile.empty(); // set by InitializeOptions::placement
      const auto numel =
          static_cast<double>(is_box_of_all ? c10::multiply_integers(tensor.global_shape()) : tensor.numel());
      trained[buffer->parameter(i).unsafeGetTensorImpl()] =
          elsewhere ? 0.0 : numel / parts.agreement.sync->groups().of(*buffer).size();
    }
  }
  double shares = 0;
  double trained_shares = 0;
  std::set<const void*> seen;
  for (const auto& item : parts.model.module->named_parameters()) {
    const void* const impl = item.value().unsafeGetTensorImpl();
    const bool copy = parts.model.layers && parts.model.layers->saved_name(item.key()) != item.key();
    if (copy || !seen.insert(impl).second) {
      continue;
    }
    if (const auto found = trained.find(impl); found != trained.end()) {
      shares += found->second;
      trained_shares += found->second;
    } else if (parts.placement_of(item.value()).counts_in_norm) {
      shares += static_cast<double>(item.value().numel()) / parts.ranks.group.size();
    }
  }
  at::Tensor sums = torch::tensor({shares, trained_shares}, torch::kFloat64);
  parts.ranks.everyone.all_reduce(sums, comm::ReduceOp::sum, "parameter count").wait();
  parts.buffers.num_parameters = std::llround(sums[0].item<double>());
  parts.buffers.num_trained = std::llround(sums[1].item<double>());
}

// Moves the parameters into flat buffers, and copies the first replica's values to all replicas.
void flatten(Parts& parts, const InitializeOptions& options, zero::ModelUnits& units) {
  const config::EngineConfig& config = options.config;
  bucket::FlatOptions sharding{.rank = 0, .size = 1};
  const bool steps_locally = parts.agreement.sync->local_steps() != nullptr && parts.ranks.group.size() > 1;
  if (!steps_locally) { // replicas that step separately have whole buckets
    sharding.rank = parts.agreement.sync->step_group().rank();
    sharding.size = parts.agreement.sync->groups().largest();
  }
  if (parts.settings.builds_on_host) {
    sharding.device = parts.device();
  }
  sharding.shard_gradients = parts.settings.sharding.gradients;
  sharding.shard_parameters = parts.settings.sharding.parameters;
  sharding.unit_of = [&](const at::Tensor& parameter) { return units.unit_of(parameter); };
  sharding.gradient_type =
      precision::scalar_type(parts.settings.precision.gradient_type(parts.settings.batch.accumulation));
  refuse_early_shards_of_some_ranks(*parts.model.module, options);
  if (sharding.shard_parameters) {
    sharding.parameter_store = make_parameter_store(parts, options);
    sharding.gradient_store =
        parts.device().is_cpu() ? make_gradient_store(parts, options) : nullptr; // of a GPU: copied through the host
    units.choose(config.zero, parts.ranks.tensor);
    check_room_for_shards(parts, options, bytes_of_shards(parts, units, sharding, config.offload.parameters));
    warn_of_whole_parameters(parts, units, config);
  } else {
    units.make_whole();
  }
  // Puts copies at the same offset on every stage: gloo's ring adds in an order that depends on the offset, and copies
  // would drift apart.
  std::set<const void*> on_several_stages;
  if (parts.model.layers) {
    for (const pipeline::TiedParameter& tied : parts.model.layers->ties()) {
      for (const at::Tensor& copy : tied.copies) {
        if (tied.owners.size() > 1) {
          on_several_stages.insert(copy.unsafeGetTensorImpl());
        }
      }
    }
  }
  const std::map<const void*, bucket::Placement> placements = merged_placements(parts, options);
  sharding.placement_of = [&](const std::string& name, const at::Tensor& parameter) {
    bucket::Placement placement = placements.at(parameter.unsafeGetTensorImpl());
    if (parts.model.layers && parts.model.layers->saved_name(name) != name) {
      placement.counts_in_norm = false;
    }
    return placement;
  };
  sharding.alone = [&](const at::Tensor& parameter) {
    return on_several_stages.count(parameter.unsafeGetTensorImpl()) != 0;
  };
  const auto make = [&](const bucket::NamedTensors& parameters) {
    return parallel::flatten(parameters, parts.agreement.sync->groups(), config.data_parallel, /*divisible=*/true,
                             sharding);
  };
  parts.buffers.trained = make(trained_parameters(parts));
  if (parts.settings.builds_on_host) {
    device::move(*parts.model.module, parts.device()); // frozen ones
  }
  if (sharding.shard_parameters) {
    parts.buffers.frozen = make(frozen_in_units(*parts.model.module, units));
  } else {
    units.drop_early_shards();
  }
  const std::vector<bucket::FlatParameters*> all = all_buffers(parts);
  parallel::check_same_model(parts.buffers.trained, parts.agreement.sync->groups());
  parts.buffers.coordinator = std::make_shared<zero::ParameterCoordinator>(
      all, parts.agreement.sync->groups(), config.zero.prefetch_elements, tensor::is_exchange);
  if (sharding.shard_parameters) {
    const auto agree = [&](bucket::FlatParameters& buffer, int64_t b) { agree_on_bucket(parts, buffer, b); };
    units.move_into(all, config.data_parallel.broadcast_at_start ? agree : zero::ModelUnits::Agree(),
                    parts.buffers.coordinator);
    parts.buffers.coordinator->keep(
        config.zero.live_elements(parts.buffers.coordinator->unit_elements(), parts.ranks.pipe.size()));
    if (!options.state_store && config.offload.parameters.place == offload::Place::nvme) {
      const int64_t in_use = parts.device().is_cpu() ? 1 : 2; // on a GPU the previous one is still being copied
      parts.buffers.coordinator->read_ahead(std::max<int64_t>(2, config.offload.parameters.buffer_count - in_use));
    }
  }
  if (config.data_parallel.broadcast_at_start) {
    agree_on_whole(parts);
  }
  if (parts.model.ties) {
    pipeline::Tensors tied;
    for (const pipeline::TiedParameter& parameter : parts.model.layers->ties()) {
      tied.insert(tied.end(), parameter.copies.begin(), parameter.copies.end());
    }
    parts.buffers.coordinator->rewrite(tied, [&] { parts.model.ties->broadcast_weights(); });
  }
}

} // namespace

void build_buffers(Parts& parts, const InitializeOptions& options, zero::ModelUnits& units) {
  flatten(parts, options, units);
  note_offload(parts, options);
  for (const auto& buffer : parts.buffers.trained) {
    log::debug("flat buffer of ", at::toString(buffer->scalar_type()), ": ", buffer->layout().numel(), " elements in ",
               buffer->layout().buckets().size(), " buckets");
    buffer->clear_grads(); // from backward passes before initialize()
  }
  const std::vector<bucket::FlatParameters*> all = all_buffers(parts);
  parts.buffers.unchanged.emplace(*parts.model.module,
                                  std::vector<const bucket::FlatParameters*>(all.begin(), all.end()));
  count_parameters(parts);
}

} // namespace trireme::engine
