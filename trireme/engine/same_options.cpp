#include <trireme/engine/same_options.h>

#include <trireme/base/error.h>
#include <trireme/base/hash.h>
#include <trireme/base/overloaded.h>
#include <trireme/checkpoint/exchange.h>

#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include <algorithm>
#include <bit>
#include <iterator>

namespace trireme::engine {
namespace {

struct Compared {
  const char* name;
  int64_t value;
};

// 0: "auto"; -1: an optimizer without such a phase.
int64_t freeze_step_of(const optim::OptimizerOptions& optimizer) {
  return std::visit(Overloaded{[](const optim::OneBitAdamOptions& one) { return one.freeze_step.value_or(0); },
                               [](const optim::OneBitLambOptions& one) { return one.freeze_step.value_or(0); },
                               [](const optim::ZeroOneAdamOptions& one) { return one.var_freeze_step; }, [](const auto&) { return int64_t{-1}; }},
                    optimizer.rule);
}

// Of 0/1 Adam: all that says when ranks exchange what. In one number, which is compared only.
int64_t intervals_of(const optim::OptimizerOptions& optimizer) {
  const auto* const one = std::get_if<optim::ZeroOneAdamOptions>(&optimizer.rule);
  return one == nullptr ? -1 : one->var_update_scaler + 1'000'003 * (one->local_step_scaler + 1'000'003 * one->local_step_clipper);
}

// Of a list or a text, in one number, which is compared only.
template <typename List>
int64_t number_of(const List& list) {
  uint64_t mixed = list.size();
  for (const auto one : list) {
    mixed = mix64(mixed + static_cast<uint64_t>(one) + kMixStep);
  }
  return static_cast<int64_t>(mixed);
}

std::vector<Compared> compared(const Parts& parts, const InitializeOptions& options) {
  const config::EngineConfig& config = options.config;
  return {
      {"the ZeRO stage", config.zero.stage},
      {"the micro-batch", parts.batch.micro},
      {"gradient_accumulation_steps", parts.batch.accumulation},
      {"gradient_clipping", std::bit_cast<int64_t>(parts.clipping)},
      {"the type of computation (fp32, bf16, fp16)", static_cast<int64_t>(parts.precision.compute)},
      {"the optimizer", static_cast<int64_t>(config.optimizer_or_adamw().rule.index())},
      {"the optimizer's freeze_step or var_freeze_step", freeze_step_of(config.optimizer_or_adamw())},
      {"var_update_scaler, local_step_scaler or local_step_clipper", intervals_of(config.optimizer_or_adamw())},
      {"gradient_compression.kind", static_cast<int64_t>(config.compression.kind)},
      {"gradient_compression.rank", config.compression.rank},
      {"gradient_compression.ratio", std::bit_cast<int64_t>(config.compression.ratio)},
      {"gradient_compression.start_step", config.compression.start_step},
      {"the type of optimizer states", static_cast<int64_t>(config.optimizer_or_adamw().state_type)},
      {"the lr", std::bit_cast<int64_t>(config.optimizer_or_adamw().lr())},
      {"step_in_backward", config.step_in_backward},
      {"broadcast_buffers", config.data_parallel.broadcast_buffers},
      {"sync_batch_norm", config.data_parallel.sync_batch_norm},
      {"bucket sizes", config.data_parallel.bucket_bytes},
      {"the number of parameter_groups", std::ssize(options.parameter_groups)},
      {"prescale_gradients", config.data_parallel.prescale_gradients},
      {"gradient_predivide_factor", std::bit_cast<int64_t>(config.data_parallel.gradient_predivide_factor)},
      {"gradient_allreduce_algorithm", static_cast<int64_t>(config.data_parallel.algorithm)},
      {"parameter_averaging.every", config.averaging.every},
      {"parameter_averaging.outer_optimizer", static_cast<int64_t>(config.averaging.outer)},
      {"parameter_averaging.outer_lr", std::bit_cast<int64_t>(config.averaging.outer_lr)},
      {"parameter_averaging.outer_momentum", std::bit_cast<int64_t>(config.averaging.outer_momentum)},
      {"parameter_averaging.elastic", config.averaging.elastic},
      {"parameter_averaging.start_step", config.averaging.start_step},
      {"parameter_averaging.states", static_cast<int64_t>(config.averaging.states)},
      {"offload_optimizer.device", static_cast<int64_t>(config.offload.optimizer.place)},
      {"offload_optimizer.ratio", std::bit_cast<int64_t>(config.offload.optimizer.ratio)},
      {"offload_optimizer.delayed_update", config.offload.optimizer.delayed_update},
      {"offload_param.device", static_cast<int64_t>(config.offload.parameters.place)},
      {"whether there is a gradient_sync", options.gradient_sync != nullptr},
      {"whether there are reduce_groups", options.reduce_groups != nullptr},
      {"whether there is a placement", options.placement != nullptr},
      {"activation_checkpointing.policy", config.activations.automatic ? -1 : config.activations.policy ? static_cast<int64_t>(*config.activations.policy) : -2},
      {"activation_checkpointing.memory_budget", config.activations.memory_budget},
      {"activation_checkpointing.choices", number_of(config.activations.choices)},
      {"activation_checkpointing.layers", number_of(config.activations.layers)},
      {"activation_checkpointing.cpu_checkpointing", config.activations.inputs_to_host},
      {"activation_checkpointing.partition_activations", config.activations.shares_inputs},
      {"activation_checkpointing.profile", config.activations.profile},
      {"sequence_parallel", options.sequence_parallel},
      {"tensor_parallel.autotp_size", config.tensor_parallel.size},
      {"whether there is an order of the samples", options.order != nullptr},
      {"whether there is training_data", options.training_data != nullptr},
      {"the kind of device", static_cast<int64_t>(parts.device().type())},
  };
}

} // namespace

void check_same_options(const Parts& parts, const InitializeOptions& options) {
  const std::vector<Compared> own = compared(parts, options);
  at::Tensor mine = torch::empty({std::ssize(own)}, torch::kInt64);
  std::transform(own.begin(), own.end(), mine.mutable_data_ptr<int64_t>(), [](const Compared& one) { return one.value; });
  const at::Tensor all = torch::empty({parts.everyone.size() * mine.numel()}, torch::kInt64);
  parts.everyone.all_gather(all, mine, "options of initialize()").wait();
  const int64_t* const found = all.const_data_ptr<int64_t>();
  for (size_t i = 0; i < own.size(); ++i) {
    for (int rank = 1; rank < parts.everyone.size(); ++rank) {
      if (found[rank * mine.numel() + static_cast<int64_t>(i)] != found[i]) {
        throw InputError("engine", concat("rank ", parts.everyone.members()[static_cast<size_t>(rank)], " and rank ", parts.everyone.members()[0], " differ in ", own[i].name),
                         "Give initialize() the same configuration and options on every rank.");
      }
    }
  }
}

void check_together(const comm::Group& ranks, const std::function<void()>& f) {
  checkpoint::Problem own;
  try {
    f();
  } catch (const PeerError&) {
    throw;
  } catch (const std::exception& error) {
    own = checkpoint::Problem::of(error);
  }
  checkpoint::decide(ranks, checkpoint::to_json(own), [](const std::vector<nlohmann::json>& reports) -> nlohmann::json {
    std::vector<checkpoint::Problem> problems;
    std::transform(reports.begin(), reports.end(), std::back_inserter(problems), checkpoint::problem_from);
    if (const checkpoint::Problem all = checkpoint::joined(problems)) {
      all.raise();
    }
    return nullptr;
  });
}

} // namespace trireme::engine
