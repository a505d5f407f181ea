#include <trireme/engine/make_sync.h>

#include <trireme/base/error.h>
#include <trireme/mesh/mesh.h>
#include <trireme/parallel/averaging/averaging_sync.h>
#include <trireme/precision/cast.h>
#include <trireme/zero/sharded_sync.h>

#include <variant>

namespace trireme::engine {
namespace {

bool is_one_bit(const config::EngineConfig& config) {
  return config.optimizer && std::holds_alternative<optim::OneBitAdamOptions>(config.optimizer->rule);
}

// Hybrid sharding: neighbours hold one copy together.
void shard_within(parallel::ReduceGroups& groups, const zero::ZeroOptions& options) {
  const comm::Group& data = groups.data();
  if (!options.shard_size || options.stage == 0 || *options.shard_size == data.size()) {
    return;
  }
  if (*options.shard_size > data.size() || data.size() % *options.shard_size != 0) {
    throw InputError("engine", concat("zero_optimization.mics_shard_size is ", *options.shard_size, ", and there are ", data.size(), " data ranks"),
                     "So many ranks hold one copy of what ZeRO shards: it has to divide their number. Without it all of them hold one.");
  }
  const auto shards = static_cast<int>(*options.shard_size);
  const mesh::Mesh mesh(data, mesh::MeshShape::fit(data.size(), {{"replicas", mesh::kRest}, {"shards", shards}}));
  groups.shard_within(mesh.group("shards"), mesh.group("replicas"));
}

void check_one_bit_adam(const InitializeOptions& options) {
  const optim::OptimizerOptions& optimizer = *options.config.optimizer;
  if (options.gradient_sync) {
    throw InputError("engine", "OneBitAdam with a gradient_sync of its own", "Use AdamW with that one.");
  }
  if (options.config.zero.stage >= 2) {
    throw InputError("engine", concat("OneBitAdam with ZeRO stage ", options.config.zero.stage, ", which leaves no rank its own gradients until the step"), "Use \"stage\": 1, or AdamW.");
  }
  if (options.config.zero.shard_size) {
    throw InputError("engine", "OneBitAdam with zero_optimization.mics_shard_size", "Leave it out, or use AdamW.");
  }
  if (optimizer.state_type != optim::StateType::fp32) {
    throw InputError("engine", concat("OneBitAdam with moments in ", optim::name(optimizer.state_type)), "Leave OptimizerOptions::state_type at fp32.");
  }
  if (const auto steps = std::get<optim::OneBitAdamOptions>(optimizer.rule).freeze_step; steps && *steps < 1) {
    throw InputError("engine", concat("OneBitAdam's freeze_step is ", *steps), "It needs a second moment, so at least one step of AdamW.");
  }
}

// The algorithms over messages reduce whole buckets in the host's memory.
void check_algorithm(const Parts& parts, const InitializeOptions& options) {
  using Options = parallel::DataParallelOptions;
  const Options::Algorithm algorithm = options.config.data_parallel.algorithm;
  if (algorithm == Options::Algorithm::backend) {
    return;
  }
  const auto refuse = [&](const std::string& what) {
    throw InputError("engine", concat("gradient_allreduce_algorithm is \"", Options::kAlgorithmNames[static_cast<size_t>(algorithm)], "\", with ", what), "Leave it out: the backend has its own.");
  };
  if (options.config.zero.stage >= 1) {
    refuse(concat("ZeRO stage ", options.config.zero.stage, ", which reduces gradients to shards"));
  }
  if (!parts.device().is_cpu()) {
    refuse(concat("gradients on ", parts.device().str(), ": those are messages of the host"));
  }
}

} // namespace

bool shards_states(const Parts& parts, const config::EngineConfig& config) {
  return config.zero.stage >= 1 && parts.group.size() > 1;
}

void check_averaging(const Parts& parts, const InitializeOptions& options) {
  const config::EngineConfig& config = options.config;
  const parallel::DataParallelOptions& data = config.data_parallel;
  const bool changes_sums = data.op != parallel::DataParallelOptions::Op::mean || data.prescale_gradients || data.gradient_predivide_factor != 1;
  const auto refuse = [](const std::string& what, const char* next) { throw InputError("engine", concat("parameter_averaging with ", what), next); };
  if (config.zero.stage >= 1) {
    refuse(concat("ZeRO stage ", config.zero.stage, ", which shards what replicas that step by themselves have whole"), "Use \"stage\": 0, or leave parameter_averaging out.");
  }
  if (options.gradient_sync) {
    refuse("a gradient_sync of its own", "Leave one of them out.");
  }
  if (is_one_bit(config)) {
    refuse("OneBitAdam, whose momenta meet in every step", "Use AdamW, or leave parameter_averaging out.");
  }
  if (data.sync_batch_norm) {
    refuse("sync_batch_norm, which waits for all replicas in every layer", "Leave one of them out.");
  }
  if (options.reduce_groups || options.placement) {
    refuse("reduce_groups or a placement: some ranks have parameters that others lack", "Leave one of them out.");
  }
  if (parts.context.size() > 1) {
    refuse(concat(parts.context.size(), " context ranks, who share the tokens of a sample and so step together"), "Use one context rank.");
  }
  if (parts.tensor.size() > 1 && options.sequence_parallel) {
    refuse("sequence_parallel, where what tensor ranks have whole has gradients to be added up in every step", "Switch sequence_parallel off.");
  }
  if (changes_sums || config.precision.communication) {
    refuse(config.precision.communication ? "communication_data_type" : "gradient_allreduce_op, prescale_gradients or gradient_predivide_factor",
           "They are about gradients that travel. Parameters travel instead, in fp32: leave them out.");
  }
}

std::unique_ptr<parallel::GradientSync> make_sync(Parts& parts, const InitializeOptions& options) {
  if (is_one_bit(options.config)) {
    check_one_bit_adam(options);
  }
  check_algorithm(parts, options);
  parallel::ReduceGroups groups(parts.group, options.reduce_groups ? options.reduce_groups(parts.group) : std::vector<comm::Group>());
  shard_within(groups, options.config.zero);
  if (parts.tensor.size() > 1) {
    // Buffers of their own, which are laid out the same on all tensor ranks: sums are added in an order that may depend on the place in a buffer.
    parts.whole.is_sum = options.sequence_parallel;
    parts.whole.group = groups.add(options.sequence_parallel ? parts.stage : parts.group);
  }
  if (options.config.averaging.on()) {
    return std::make_unique<parallel::AveragingSync>(groups, options.config.averaging, precision::scalar_type(parts.precision.communication_type()));
  }
  if (options.gradient_sync) {
    if (parts.tensor.size() > 1) {
      throw InputError("engine", "tensor parallelism with a gradient_sync of its own", "Leave one of them out.");
    }
    if (options.config.zero.stage >= 1) {
      throw InputError("engine", concat("ZeRO stage ", options.config.zero.stage, " with a gradient_sync of its own"),
                       "ZeRO shards what that one expects whole: use \"stage\": 0.");
    }
    return options.gradient_sync(groups);
  }
  const at::ScalarType travel = precision::scalar_type(parts.precision.communication_type());
  std::unique_ptr<parallel::AllReduceSync> plain;
  if (shards_states(parts, options.config)) {
    plain = std::make_unique<zero::ShardedSync>(groups, options.config.data_parallel, travel);
  } else {
    plain = std::make_unique<parallel::AllReduceSync>(groups, options.config.data_parallel, travel);
  }
  if (is_one_bit(options.config)) {
    auto made = std::make_unique<compress::OneBitAdamSync>(std::move(plain), std::get<optim::OneBitAdamOptions>(options.config.optimizer->rule), parts.everyone);
    parts.one_bit = made.get();
    return made;
  }
  return plain;
}

} // namespace trireme::engine
