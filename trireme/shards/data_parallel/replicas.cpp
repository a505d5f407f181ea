#include <trireme/shards/data_parallel/replicas.h>

#include <trireme/base/error.h>
#include <trireme/comm/differences.h>
#include <trireme/device/absent_memory.h>

#include <torch/nn/module.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace trireme::parallel {
namespace {

// A text for each parameter of the buffers that this group reduces, in their order.
nlohmann::json description(const FlatBuffers& buffers, int reduce_group) {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& buffer : buffers) {
    if (buffer->reduce_group() != reduce_group) {
      continue;
    }
    nlohmann::json& parameters = all.emplace_back(nlohmann::json::array());
    for (const bucket::TensorInfo& tensor : buffer->layout().tensors()) {
      const bucket::Placement& placement = tensor.placement;
      parameters.push_back(concat(
          tensor.name, ", ", buffer->scalar_type(), ' ', at::IntArrayRef(tensor.sizes),
          placement.global_shape.empty()
              ? ""
              : concat(" at ", at::IntArrayRef(placement.box_offset), " of ", at::IntArrayRef(placement.global_shape)),
          placement.counts_in_norm ? "" : ", a copy"));
    }
  }
  return all;
}

} // namespace

std::vector<bucket::FlatParameters*> pointers_to(const FlatBuffers& buffers) {
  std::vector<bucket::FlatParameters*> found;
  std::transform(buffers.begin(), buffers.end(), std::back_inserter(found),
                 [](const auto& buffer) { return buffer.get(); });
  return found;
}

bucket::NamedTensors trainable_parameters(const torch::nn::Module& model, bool may_be_empty) {
  bucket::NamedTensors parameters;
  for (const auto& item : model.named_parameters()) {
    parameters.emplace_back(item.key(), item.value());
  }
  return trainable_parameters(parameters, may_be_empty);
}

bucket::NamedTensors trainable_parameters(const bucket::NamedTensors& parameters, bool may_be_empty) {
  bucket::NamedTensors found;
  std::set<const void*> seen;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
      found.emplace_back(name, parameter);
    }
  }
  if (found.empty() && !may_be_empty) {
    throw InputError("data parallel", "the model has no parameter that requires a gradient");
  }
  return found;
}

FlatBuffers flatten(const bucket::NamedTensors& parameters, const ReduceGroups& groups,
                    const DataParallelOptions& options, bool divisible, const bucket::FlatOptions& flat_options) {
  std::map<int, std::vector<int64_t>> of_group;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, parameter] = parameters[i];
    of_group[flat_options.placement_of ? flat_options.placement_of(name, parameter).reduce_group : 0].push_back(
        static_cast<int64_t>(i));
  }
  FlatBuffers buffers;
  for (const auto& [number, places] : of_group) {
    const comm::Group& group = groups.at(number);
    bucket::LayoutOptions layout;
    layout.bucket_bytes = options.bucket_bytes;
    layout.first_bucket_bytes = options.bytes_of_first_bucket();
    bucket::FlatOptions own = flat_options;
    const comm::Group& shards = groups.shards(number);
    layout.shards = divisible ? shards.size() : 1;
    if (flat_options.size > 1) {
      own.rank = shards.rank();
      own.size = shards.size();
      own.is_repeated = groups.replicas(number).rank() > 0;
    }
    own.places = places;
    bucket::NamedTensors chosen;
    for (const int64_t place : places) {
      chosen.push_back(parameters[place]);
    }
    const auto allocate = [group](int64_t numel, at::ScalarType type, at::Device device) {
      return group.allocate(numel, type, device);
    };
    for (auto& buffer : bucket::flatten(chosen, layout, allocate, own)) {
      buffers.push_back(std::move(buffer));
    }
  }
  return buffers;
}

void check_same_model(const FlatBuffers& buffers, const ReduceGroups& groups) {
  for (size_t number = 0; number < groups.all().size(); ++number) {
    const comm::Group& group = groups.all()[number];
    for (const comm::LeafDifference& found :
         comm::differences(group, description(buffers, static_cast<int>(number)), "the ranks' models")) {
      throw InputError(
          "data parallel",
          concat("rank ", found.values[1].ranks.front(), " built another model than rank ", group.members()[0],
                 ": it has ", found.other(), " where rank ", group.members()[0], " has ", found.first()),
          "Build the same model on every rank of the group; give parameters that are split among ranks "
          "a reduce_group of their own.");
    }
  }
}

void check_same_values(const FlatBuffers& buffers, const comm::Group& group) {
  std::vector<const std::string*> names;
  std::vector<at::Tensor> sums; // of the bits
  for (const auto& buffer : buffers) {
    for (int64_t i = 0; i < buffer->count(); ++i) {
      const at::Tensor values = buffer->parameter(i).detach().contiguous().view({-1});
      names.push_back(&buffer->name(i));
      sums.push_back((values.nbytes() % sizeof(int32_t) == 0 ? values.view(at::kInt) : values.view(at::kShort))
                         .sum(at::kLong)
                         .cpu());
    }
  }
  const auto differences = [&](const at::Tensor& mine) { // largest and smallest over the ranks
    at::Tensor most = at::cat({mine, -mine});
    group.all_reduce(most, comm::ReduceOp::max, "check of first values").wait();
    return (most.narrow(0, 0, mine.numel()) + most.narrow(0, mine.numel(), mine.numel())).nonzero();
  };
  const at::Tensor all = at::stack(sums);
  if (differences((all * at::arange(1, all.numel() + 1)).sum().view({1})).numel() > 0) {
    const at::Tensor differs = differences(all);
    throw InputError("data parallel",
                     concat("parameter \"", *names[static_cast<size_t>(differs[0].item<int64_t>())],
                            "\" differs between ranks in the first step: it was changed after DataParallel broadcast "
                            "rank 0's values"),
                     "Draw or load the weights before DataParallel is made. To begin with different ones, set "
                     "broadcast_at_start to false.");
  }
}

void broadcast_parameters(const FlatBuffers& buffers, const ReduceGroups& groups, int root) {
  const torch::NoGradGuard no_grad;
  for (const auto& buffer : buffers) {
    if (!buffer->parameters_are_sharded()) {
      groups.of(*buffer).broadcast(buffer->flat_data(), root, "parameters").wait();
    }
  }
}

void broadcast_untrained(torch::nn::Module& model, const comm::Group& group, int root) {
  bucket::NamedTensors tensors;
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad()) { // sharded parameters are equal already and have no memory
      tensors.emplace_back(item.key(), item.value());
    }
  }
  for (const auto& item : model.named_buffers()) {
    tensors.emplace_back(item.key(), item.value());
  }
  broadcast_tensors(tensors, group, root);
}

void broadcast_tensors(const bucket::NamedTensors& tensors, const comm::Group& group, int root) {
  if (group.size() == 1) {
    return;
  }
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    if (device::has_memory(tensor)) {
      at::Tensor whole = tensor.detach().contiguous();
      group.broadcast(whole, root, name).wait();
      tensor.detach().copy_(whole);
    }
  }
}

} // namespace trireme::parallel
