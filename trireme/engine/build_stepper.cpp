#include <trireme/engine/build_stepper.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/engine/followed_rates.h>
#include <trireme/engine/make_activations.h>
#include <trireme/engine/make_store.h>
#include <trireme/engine/offload_room.h>
#include <trireme/engine/optimizer_groups.h>
#include <trireme/engine/same_options.h>

#include <torch/types.h>
#include <nlohmann/json.hpp>

namespace trireme::engine {
namespace {

std::shared_ptr<optim::Schedule> make_schedule(const InitializeOptions& options, double optimizer_lr) {
  if (options.lr) {
    return optim::make_schedule(options.lr);
  }
  if (options.optimizer && options.config.schedule.kind == optim::ScheduleOptions::Kind::constant) {
    return std::make_shared<FollowedRates>(options.optimizer);
  }
  return optim::make_schedule(options.config.schedule, optimizer_lr);
}

// Treats copies of a tied parameter as one: their gradients are summed before communication and counted once.
void respect_ties(Parts& parts) {
  if (!parts.model.layers->ties().empty() && parts.stepper.optimizer->sharded() &&
      parts.stepper.optimizer->rule().state_type() == optim::StateType::int8) {
    throw InputError("engine",
                     concat("8-bit optimizer states, sharded by ZeRO, of copies of a tied parameter (\"",
                            parts.model.layers->ties().front().name,
                            "\"): their blocks begin at other elements in each copy, which would drift apart"),
                     "Use \"state_dtype\": \"bf16\", or ZeRO stage 0.");
  }
  parts.buffers.reducer->hold(parts.model.layers->late_parameters());
}

// The part of a sample that this stage needs.
data::Part part_for(const Parts& parts) {
  if (!parts.model.executor || parts.ranks.pipe.size() == 1) {
    return data::Part::all;
  }
  return parts.model.executor->loads_inputs() ? data::Part::inputs : data::Part::targets;
}

data::DataLoader make_loader(const Parts& parts, const InitializeOptions& options) {
  data::SamplerOptions sampler;
  sampler.shuffle = options.shuffle;
  sampler.drop_last = options.config.dataloader_drop_last;
  sampler.seed = options.config.seed;
  sampler.rank = parts.ranks.data.rank() + parts.ranks.worker;
  sampler.replicas = parts.ranks.data.size() * parts.ranks.workers;
  sampler.order = options.order;
  const auto data = options.collate ? data::collated(options.training_data, options.collate) : options.training_data;
  data::DataLoader loader(data, data::DistributedSampler(data->size(), sampler), parts.settings.batch.micro,
                          options.prefetch, part_for(parts), !parts.device().is_cpu());
  if (options.order) {
    const auto mine = static_cast<int64_t>(loader.state().at("order").get<uint64_t>() >> 1);
    at::Tensor range = torch::tensor({mine, -mine}, torch::kInt64);
    parts.ranks.everyone.all_reduce(range, comm::ReduceOp::max, "order of the samples").wait();
    if (range[0].item<int64_t>() != -range[1].item<int64_t>()) {
      throw InputError("engine", "the ranks have different orders of the samples",
                       "Return the order of the whole epoch from InitializeOptions::order, the same on every rank; the "
                       "loader divides it.");
    }
  }
  return loader;
}

// Passes the optimizer's options to the processes that hold masters and states.
void connect(const Parts& parts, const config::EngineConfig& config,
             const optim::FlatOptimizer::OptionsOf& options_of_each) {
  config::EngineConfig used = config;
  used.optimizer = config.optimizer_or_adamw();
  std::vector<std::string> arrays;
  for (const optim::StateInfo& state : parts.stepper.optimizer->rule().states()) {
    arrays.push_back(state.name);
  }
  parts.agreement.sync->remote_states()->connect(
      [&](const bucket::TensorInfo& tensor) {
        const optim::ParameterOptions of = options_of_each(tensor);
        return parallel::RemoteStates::Parameter{of.weight_decay, of.lr_factor, parts.stepper.optimizer->needs_norms()};
      },
      nlohmann::json::parse(config::to_json(used).at("optimizer").dump()), arrays);
}

void make_optimizer(Parts& parts, const InitializeOptions& options) {
  const config::EngineConfig& config = options.config;
  const std::vector<bucket::FlatParameters*> buffers = parallel::pointers_to(parts.buffers.trained);
  check_room_for_states(parts, options, buffers);
  const optim::OptimizerOptions optimizer = config.optimizer_or_adamw();
  const auto options_of_each = options_of(parts, options.parameter_groups, optimizer, options.optimizer != nullptr);
  parallel::RemoteStates* const remote = parts.agreement.sync->remote_states();
  const auto make = [&] {
    parts.stepper.optimizer = std::make_shared<optim::FlatOptimizer>(
        buffers, options_of_each, optimizer, parts.settings.sharding.states,
        remote != nullptr ? remote->make_store() : make_optimizer_store(parts, options), host_steps(parts, options));
  };
  if (parts.ranks.offloaded) {
    check_together(parts.ranks.everyone, make); // a disk may be full on one rank only
  } else {
    make();
  }
  parts.stepper.optimizer->sum_over([groups = parts.agreement.sync->groups()](at::Tensor& sums, int reduce_group) {
    groups.shards(reduce_group).all_reduce(sums, comm::ReduceOp::sum, "norms of parameters").wait();
  });
  parts.agreement.sync->step_exchange().attach_optimizer(*parts.stepper.optimizer);
  if (remote != nullptr) {
    connect(parts, config, options_of_each);
  }
  parts.buffers.coordinator->on_modified([optimizer = std::weak_ptr(parts.stepper.optimizer)] {
    if (const auto alive = optimizer.lock()) {
      alive->refresh_masters();
    }
  });
}

} // namespace

void build_stepper(Parts& parts, const InitializeOptions& options, OptimizerStep& step, int ranks_of_host) {
  const config::EngineConfig& config = options.config;
  make_optimizer(parts, options);
  parts.stepper.may_step_in_backward = config.step_in_backward;
  if (parts.stepper.may_step_in_backward || parts.stepper.optimizer->steps_on_host()) {
    parts.buffers.reducer->on_bucket_final(
        [&step](int64_t buffer, int64_t bucket) { step.bucket_final(buffer, bucket); });
  }
  if (parts.model.layers) {
    respect_ties(parts);
  }
  parts.stepper.schedule = make_schedule(options, config.optimizer_or_adamw().lr());
  for (const std::string& warning : parts.stepper.schedule->warnings()) {
    log::warning(warning);
  }
  check_together(parts.ranks.everyone, [&] { make_activations(parts, options, ranks_of_host); });
  if (options.training_data) {
    parts.stepper.loader = std::make_shared<data::RepeatingLoader>(make_loader(parts, options));
  } else {
    parts.stepper.loader = options.training_loader;
  }
  if (parts.stepper.loader) {
    parts.stepper.loader->set_micro_batches_per_step(parts.settings.batch.accumulation);
    parts.weigh_losses_after(0);
  }
}

} // namespace trireme::engine
