#include <trireme/engine/make_sync.h>

#include <trireme/base/error.h>
#include <trireme/compress/gradient_compression_sync.h>
#include <trireme/compress/one_bit_adam_sync.h>
#include <trireme/compress/one_bit_lamb_sync.h>
#include <trireme/compress/zero_one_adam_sync.h>
#include <trireme/engine/make_store.h>
#include <trireme/mesh/mesh.h>
#include <trireme/parallel/averaging/averaging_sync.h>
#include <trireme/parallel/averaging/elastic_averaging_sync.h>
#include <trireme/precision/cast.h>
#include <trireme/zero/sharded_sync.h>

#include <algorithm>
#include <optional>
#include <regex>
#include <string>
#include <variant>

namespace trireme::engine {
namespace {

template <class Rule>
const Rule* rule_of(const config::EngineConfig& config) {
  return config.optimizer ? std::get_if<Rule>(&config.optimizer->rule) : nullptr;
}

// Of the optimizer, if it compresses.
const char* compressing_optimizer(const config::EngineConfig& config) {
  return rule_of<optim::OneBitAdamOptions>(config) != nullptr    ? "OneBitAdam"
         : rule_of<optim::OneBitLambOptions>(config) != nullptr  ? "OneBitLamb"
         : rule_of<optim::ZeroOneAdamOptions>(config) != nullptr ? "ZeroOneAdam"
                                                                 : nullptr;
}

// Hybrid sharding: neighbours hold one copy together.
void shard_within(parallel::ReduceGroups& groups, const zero::ZeroOptions& options) {
  const comm::Group& data = groups.data();
  if (!options.shard_size || options.stage == 0 || *options.shard_size == data.size()) {
    return;
  }
  if (*options.shard_size > data.size() || data.size() % *options.shard_size != 0) {
    throw InputError("engine",
                     concat("zero_optimization.mics_shard_size is ", *options.shard_size, ", and there are ",
                            data.size(), " data ranks"),
                     "So many ranks hold one copy of what ZeRO shards: it has to divide their number. Without it all "
                     "of them hold one.");
  }
  const auto shards = static_cast<int>(*options.shard_size);
  const mesh::Mesh mesh(data, mesh::MeshShape::fit(data.size(), {{"replicas", mesh::kRest}, {"shards", shards}}));
  groups.shard_within(mesh.group("shards"), mesh.group("replicas"));
}

void check_compression(const InitializeOptions& options) {
  const config::EngineConfig& config = options.config;
  const std::string name = compresses(config);
  if (options.gradient_sync) {
    throw InputError("engine", concat(name, " with a gradient_sync of its own"), "Leave one of them out.");
  }
  if (config.zero.stage >= 2) {
    throw InputError(
        "engine",
        concat(name, " with ZeRO stage ", config.zero.stage, ", which leaves no rank its own gradients until the step"),
        concat("Use \"stage\": 1, or no ", name, '.'));
  }
  if (config.zero.shard_size) {
    throw InputError("engine", concat(name, " with zero_optimization.mics_shard_size"), "Leave one of them out.");
  }
  const char* const optimizer = compressing_optimizer(config);
  if (optimizer != nullptr && config.compression.on()) {
    throw InputError("engine", concat("gradient_compression with ", optimizer, ", which compresses by itself"),
                     "Leave one of them out.");
  }
  if (optimizer != nullptr && config.optimizer->state_type != optim::StateType::fp32) {
    throw InputError("engine", concat(optimizer, " with moments in ", optim::name(config.optimizer->state_type)),
                     "Leave OptimizerOptions::state_type at fp32.");
  }
  const auto at_least_one = [&](const char* key, std::optional<int64_t> steps) {
    if (steps && *steps < 1) {
      throw InputError("engine", concat(name, "'s ", key, " is ", *steps), "Say a number from 1 on.");
    }
  };
  if (const auto* const adam = rule_of<optim::OneBitAdamOptions>(config)) {
    at_least_one("freeze_step", adam->freeze_step);
  }
  if (const auto* const lamb = rule_of<optim::OneBitLambOptions>(config)) {
    at_least_one("freeze_step", lamb->freeze_step);
    if (!(lamb->coeff_beta >= 0 && lamb->coeff_beta < 1) ||
        !(lamb->factor_min > 0 && lamb->factor_min <= 1 && lamb->factor_max >= 1) ||
        !(lamb->factor_threshold >= 0 && lamb->factor_threshold < 1)) {
      throw InputError("engine",
                       concat("OneBitLamb with coeff_beta ", lamb->coeff_beta, ", factor_min ", lamb->factor_min,
                              ", factor_max ", lamb->factor_max, ", factor_threshold ", lamb->factor_threshold),
                       "coeff_beta and factor_threshold are from 0 up to 1, factor_min above 0 and at most 1, "
                       "factor_max at least 1.");
    }
  }
  if (const auto* const adam = rule_of<optim::ZeroOneAdamOptions>(config)) {
    at_least_one("var_freeze_step", adam->var_freeze_step);
    at_least_one("var_update_scaler", adam->var_update_scaler);
    at_least_one("local_step_scaler", adam->local_step_scaler);
    at_least_one("local_step_clipper", adam->local_step_clipper);
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
    throw InputError("engine",
                     concat("gradient_allreduce_algorithm is \"",
                            Options::kAlgorithmNames[static_cast<size_t>(algorithm)], "\", with ", what),
                     "Leave it out: the backend has its own.");
  };
  if (options.config.zero.stage >= 1) {
    refuse(concat("ZeRO stage ", options.config.zero.stage, ", which reduces gradients to shards"));
  }
  if (options.config.averaging.on() || options.config.server.on() || compresses(options.config) != nullptr ||
      options.gradient_sync) {
    refuse(options.config.averaging.on() ? "parameter_averaging"
           : options.config.server.on()  ? "parameter servers"
           : options.gradient_sync       ? "a gradient_sync of its own"
                                         : compresses(options.config));
  }
  if (!parts.device().is_cpu()) {
    refuse(concat("gradients on ", parts.device().str(), ": those are messages of the host"));
  }
}

// What needs all replicas in every step, where they step by themselves.
void check_alone(const Parts& parts, const InitializeOptions& options, const char* name, const char* without) {
  const config::EngineConfig& config = options.config;
  const parallel::DataParallelOptions& data = config.data_parallel;
  const bool changes_sums = data.op != parallel::DataParallelOptions::Op::mean || data.prescale_gradients ||
                            data.gradient_predivide_factor != 1;
  const auto refuse = [&](const std::string& what, const std::string& next) {
    throw InputError("engine", concat(name, " with ", what), next);
  };
  if (config.zero.stage >= 1) {
    refuse(concat("ZeRO stage ", config.zero.stage, ", which shards what replicas that step by themselves have whole"),
           concat("Use \"stage\": 0, or ", without, '.'));
  }
  if (data.sync_batch_norm) {
    refuse("sync_batch_norm, which waits for all replicas in every layer", concat("Switch it off, or ", without, '.'));
  }
  if (options.reduce_groups || options.placement) {
    refuse("reduce_groups or a placement: some ranks have parameters that others lack",
           concat("Leave them out, or ", without, '.'));
  }
  if (parts.context.size() > 1) {
    refuse(concat(parts.context.size(), " context ranks, who share the tokens of a sample and so step together"),
           concat("Use one context rank, or ", without, '.'));
  }
  if (parts.tensor.size() > 1 && options.sequence_parallel) {
    refuse("sequence_parallel, where what tensor ranks have whole has gradients to be added up in every step",
           concat("Switch sequence_parallel off, or ", without, '.'));
  }
  if (changes_sums) {
    refuse("gradient_allreduce_op, prescale_gradients or gradient_predivide_factor",
           "They are about gradients that travel: leave them out.");
  }
}

std::unique_ptr<parallel::GradientSync> compressed(std::unique_ptr<parallel::AllReduceSync> plain, const Parts& parts,
                                                   const config::EngineConfig& config) {
  if (const auto* const adam = rule_of<optim::OneBitAdamOptions>(config)) {
    return std::make_unique<compress::OneBitAdamSync>(std::move(plain), *adam, parts.everyone);
  }
  if (const auto* const lamb = rule_of<optim::OneBitLambOptions>(config)) {
    return std::make_unique<compress::OneBitLambSync>(std::move(plain), *lamb, parts.everyone);
  }
  if (const auto* const adam = rule_of<optim::ZeroOneAdamOptions>(config)) {
    return std::make_unique<compress::ZeroOneAdamSync>(std::move(plain), *adam, parts.everyone,
                                                       adam->local_step_clipper > 1);
  }
  return std::make_unique<compress::GradientCompressionSync>(std::move(plain), config.compression, parts.everyone);
}

} // namespace

const char* compresses(const config::EngineConfig& config) {
  const char* const optimizer = compressing_optimizer(config);
  return optimizer != nullptr ? optimizer : config.compression.on() ? "gradient_compression" : nullptr;
}

bool shards_states(const Parts& parts, const config::EngineConfig& config) {
  return (config.zero.stage >= 1 && parts.group.size() > 1) || shards_parameters(config, parts.group.size());
}

bool shards_gradients(const Parts& parts, const config::EngineConfig& config) {
  const bool go_to_host = !parts.device().is_cpu() && config.offload.optimizer.place != offload::Place::device;
  return config.zero.stage >= 2 && (shards_states(parts, config) || go_to_host);
}

void check_averaging(const Parts& parts, const InitializeOptions& options) {
  const auto refuse = [](const std::string& what, const char* next) {
    throw InputError("engine", concat("parameter_averaging with ", what), next);
  };
  if (options.gradient_sync) {
    refuse("a gradient_sync of its own", "Leave one of them out.");
  }
  if (const char* const optimizer = compressing_optimizer(options.config)) {
    refuse(concat(optimizer, ", which has its own way to meet"), "Use AdamW, or leave parameter_averaging out.");
  }
  if (options.config.compression.on()) {
    refuse("gradient_compression: there are no gradients that travel", "Leave one of them out.");
  }
  if (options.config.precision.communication) {
    refuse("communication_data_type",
           "It is about gradients that travel. Parameters travel instead, in fp32: leave it out.");
  }
  if (options.config.averaging.elastic && !options.replica) {
    refuse("\"elastic\" in a program that does not say which replica it is",
           "`trireme train` starts such replicas; a program of yours sets InitializeOptions::replica.");
  }
  if (options.config.averaging.elastic && parts.everyone.size() > 1) {
    refuse(concat("\"elastic\" and a replica of ", parts.everyone.size(), " ranks"),
           "A replica that comes and goes is one process, a world of its own: leave pipe, tensor and context at 1.");
  }
  check_alone(parts, options, "parameter_averaging", "leave parameter_averaging out");
}

void check_server(const Parts& parts, const InitializeOptions& options) {
  const config::EngineConfig& config = options.config;
  if (!config.server.on()) {
    if (options.server_worker) {
      throw InputError("engine", "InitializeOptions::server_worker without servers in the configuration",
                       "Set EngineConfig::server, or leave it out.");
    }
    return;
  }
  const auto refuse = [](const std::string& what, const char* next) {
    throw InputError("engine", concat("parameter servers with ", what), next);
  };
  if (!options.server_worker) {
    refuse("a program that does not say which worker it is",
           "`trireme train` starts servers and workers; a program of yours sets InitializeOptions::server_worker.");
  }
  if (static_cast<int64_t>(options.server_worker->addresses.size()) != config.server.servers) {
    refuse(concat(options.server_worker->addresses.size(), " addresses for ", config.server.servers, " servers"),
           "Give the address of each.");
  }
  if (parts.everyone.size() > 1) {
    refuse(concat("a worker of ", parts.everyone.size(), " ranks"),
           "A worker is one process: leave pipe, tensor and context at 1.");
  }
  if (config.zero.stage >= 1) {
    refuse(concat("ZeRO stage ", config.zero.stage, ": the states are on the servers already"), "Use \"stage\": 0.");
  }
  if (parts.precision.scales_loss()) {
    refuse("fp16, whose loss scales would differ from worker to worker", "Use bf16.");
  }
  if (config.precision.communication) {
    refuse("communication_data_type", "Gradients travel in the parameters' type: leave it out.");
  }
  if (options.gradient_sync || config.averaging.on() || compresses(config) != nullptr) {
    refuse(options.gradient_sync   ? "a gradient_sync of its own"
           : config.averaging.on() ? "parameter_averaging"
                                   : compresses(config),
           "Leave one of them out.");
  }
  if (config.step_in_backward || options.state_store) {
    refuse(config.step_in_backward ? "step_in_backward" : "a state_store: the states are on the servers",
           "Leave one of them out.");
  }
  check_alone(parts, options, "parameter servers", "leave parallel.sync out");
  const optim::OptimizerOptions optimizer = config.optimizer_or_adamw();
  if (optimizer.state_type == optim::StateType::int8) {
    refuse("8-bit optimizer states", "Use fp32 or bf16 states.");
  }
  if (std::holds_alternative<optim::LambOptions>(optimizer.rule) && !config.server.sparse_rows.empty()) {
    refuse("sparse_rows and LAMB, which needs the norms of whole parameters", "Leave sparse_rows out, or use AdamW.");
  }
}

namespace {

// Which parameters have rows that travel by themselves. Errors: InputError for a pattern that names none.
std::vector<std::string> sparse_parameters(const Parts& parts, const std::vector<std::string>& patterns) {
  std::vector<std::string> names;
  for (const std::string& pattern : patterns) {
    const std::regex regex(pattern);
    bool any = false;
    for (const auto& buffer : parts.buffers) {
      for (const bucket::TensorInfo& tensor : buffer->layout().tensors()) {
        if (!std::regex_search(tensor.name, regex, std::regex_constants::match_continuous)) {
          continue;
        }
        if (tensor.sizes.size() < 2) {
          throw InputError("engine",
                           concat("parallel.sync.sparse_rows: \"", pattern, "\" matches \"", tensor.name,
                                  "\", which has no rows: ", tensor.sizes.size(), " dimensions"),
                           "Name the weights of embeddings, as a rule.");
        }
        any = true;
        names.push_back(tensor.name);
      }
    }
    if (!any) {
      throw InputError(
          "engine",
          concat("parallel.sync.sparse_rows: \"", pattern, "\" matches no parameter from the beginning of its name"),
          "trireme inspect lists the names of a checkpoint's parameters; an example is transformer.wte.");
    }
  }
  return names;
}

} // namespace

void join_servers(Parts& parts, const config::EngineConfig& config,
                  const optim::FlatOptimizer::OptionsOf& options_of_each) {
  config::EngineConfig used = config;
  used.optimizer = config.optimizer_or_adamw();
  std::vector<std::string> arrays;
  for (const optim::StateInfo& state : parts.optimizer->rule().states()) {
    arrays.push_back(state.name);
  }
  const std::vector<std::string> sparse = sparse_parameters(parts, config.server.sparse_rows);
  parts.server->join(
      [&](const bucket::TensorInfo& tensor) {
        const optim::ParameterOptions of = options_of_each(tensor);
        parallel::server::ParameterInfo parameter;
        parameter.weight_decay = of.weight_decay;
        parameter.lr_factor = of.lr_factor;
        parameter.whole = parts.optimizer->needs_norms();
        parameter.sparse = std::find(sparse.begin(), sparse.end(), tensor.name) != sparse.end();
        return parameter;
      },
      nlohmann::json::parse(config::to_json(used).at("optimizer").dump()), arrays);
}

std::unique_ptr<parallel::GradientSync> make_sync(Parts& parts, const InitializeOptions& options) {
  if (compresses(options.config) != nullptr) {
    check_compression(options);
    if (const auto* const adam = rule_of<optim::ZeroOneAdamOptions>(options.config);
        adam != nullptr && adam->local_step_clipper > 1) {
      check_alone(parts, options, "ZeroOneAdam", "\"local_step_clipper\": 1, with which the ranks meet in every step");
    }
  }
  check_algorithm(parts, options);
  parallel::ReduceGroups groups(
      parts.group, options.reduce_groups ? options.reduce_groups(parts.group) : std::vector<comm::Group>());
  parts.program_groups = static_cast<int>(groups.all().size()) - 1;
  shard_within(groups, options.config.zero);
  if (parts.tensor.size() > 1) {
    // Buffers of their own, which are laid out the same on all tensor ranks: sums are added in an order that may depend
    // on the place in a buffer.
    parts.whole.is_sum = options.sequence_parallel;
    parts.whole.group = groups.add(options.sequence_parallel ? parts.stage : parts.group);
    for (int number = 1; number <= parts.program_groups && !options.sequence_parallel; ++number) {
      parts.whole.of_program.push_back(groups.add(groups.at(number)));
    }
  }
  if (options.config.server.on()) {
    auto made = std::make_unique<parallel::server::ServerSync>(groups, options.config.server, *options.server_worker);
    parts.server = made.get();
    return made;
  }
  if (options.config.averaging.elastic) {
    auto made = std::make_unique<parallel::ElasticAveragingSync>(groups, options.config.averaging, *options.replica);
    parts.elastic = made.get();
    return made;
  }
  if (options.config.averaging.on()) {
    return std::make_unique<parallel::AveragingSync>(groups, options.config.averaging,
                                                     precision::scalar_type(parts.precision.communication_type()));
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
  if (shards_states(parts, options.config) || shards_gradients(parts, options.config)) {
    plain = std::make_unique<zero::ShardedSync>(groups, options.config.data_parallel, travel);
  } else {
    plain = std::make_unique<parallel::AllReduceSync>(groups, options.config.data_parallel, travel);
  }
  if (compresses(options.config) != nullptr) {
    return compressed(std::move(plain), parts, options.config);
  }
  return plain;
}

} // namespace trireme::engine
