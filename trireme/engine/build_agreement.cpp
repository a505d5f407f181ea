#include <trireme/engine/build_agreement.h>

#include <trireme/base/error.h>
#include <trireme/compress/gradient_compression_sync.h>
#include <trireme/compress/one_bit_adam_sync.h>
#include <trireme/compress/one_bit_lamb_sync.h>
#include <trireme/compress/zero_one_adam_sync.h>
#include <trireme/engine/check_options.h>
#include <trireme/engine/make_store.h>
#include <trireme/engine/same_options.h>
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

// What the JSON's own checks do not see of options that are made in C++.
void check_compressing_optimizer(const config::EngineConfig& config) {
  const auto at_least_one = [&](const char* key, std::optional<int64_t> steps) {
    if (steps && *steps < 1) {
      throw InputError("engine", concat(compressing_optimizer(config), "'s ", key, " is ", *steps),
                       "Say a number from 1 on.");
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

void check_worker(const InitializeOptions& options) {
  const config::EngineConfig& config = options.config;
  if (!config.server.on()) {
    if (options.server_worker) {
      throw InputError("engine", "InitializeOptions::server_worker without servers in the configuration",
                       "Set EngineConfig::server, or leave it out.");
    }
    return;
  }
  if (std::ssize(options.server_worker->addresses) != config.server.servers) {
    throw InputError("engine",
                     concat("parameter servers with ", options.server_worker->addresses.size(), " addresses for ",
                            config.server.servers, " servers"),
                     "Give the address of each.");
  }
}

std::unique_ptr<parallel::GradientSync> compressed(std::unique_ptr<parallel::AllReduceSync> plain, const Parts& parts,
                                                   const config::EngineConfig& config) {
  if (const auto* const adam = rule_of<optim::OneBitAdamOptions>(config)) {
    return std::make_unique<compress::OneBitAdamSync>(std::move(plain), *adam, parts.ranks.everyone);
  }
  if (const auto* const lamb = rule_of<optim::OneBitLambOptions>(config)) {
    return std::make_unique<compress::OneBitLambSync>(std::move(plain), *lamb, parts.ranks.everyone);
  }
  if (const auto* const adam = rule_of<optim::ZeroOneAdamOptions>(config)) {
    return std::make_unique<compress::ZeroOneAdamSync>(std::move(plain), *adam, parts.ranks.everyone,
                                                       adam->local_step_clipper > 1);
  }
  return std::make_unique<compress::GradientCompressionSync>(std::move(plain), config.compression,
                                                             parts.ranks.everyone);
}

} // namespace

bool shards_states(const Parts& parts, const config::EngineConfig& config) {
  return (config.zero.stage >= 1 && parts.ranks.group.size() > 1) ||
         shards_parameters(config, parts.ranks.group.size());
}

bool shards_gradients(const Parts& parts, const config::EngineConfig& config) {
  const bool go_to_host = !parts.device().is_cpu() && config.offload.optimizer.place != offload::Place::device;
  return config.zero.stage >= 2 && (shards_states(parts, config) || go_to_host);
}

namespace {

// Which parameters have rows that travel by themselves. Errors: InputError for a pattern that names none.
std::vector<std::string> sparse_parameters(const Parts& parts, const std::vector<std::string>& patterns) {
  std::vector<std::string> names;
  for (const std::string& pattern : patterns) {
    const std::regex regex(pattern);
    bool any = false;
    for (const auto& buffer : parts.buffers.trained) {
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
  for (const optim::StateInfo& state : parts.stepper.optimizer->rule().states()) {
    arrays.push_back(state.name);
  }
  const std::vector<std::string> sparse = sparse_parameters(parts, config.server.sparse_rows);
  parts.agreement.server->join(
      [&](const bucket::TensorInfo& tensor) {
        const optim::ParameterOptions of = options_of_each(tensor);
        parallel::server::ParameterInfo parameter;
        parameter.weight_decay = of.weight_decay;
        parameter.lr_factor = of.lr_factor;
        parameter.whole = parts.stepper.optimizer->needs_norms();
        parameter.sparse = std::find(sparse.begin(), sparse.end(), tensor.name) != sparse.end();
        return parameter;
      },
      nlohmann::json::parse(config::to_json(used).at("optimizer").dump()), arrays);
}

namespace {

std::unique_ptr<parallel::GradientSync> make_sync(const Parts& parts, Agreement& out,
                                                  const parallel::ReduceGroups& groups,
                                                  const InitializeOptions& options) {
  if (options.config.server.on()) {
    auto made = std::make_unique<parallel::server::ServerSync>(groups, options.config.server, *options.server_worker);
    out.server = made.get();
    return made;
  }
  if (options.config.averaging.elastic) {
    auto made = std::make_unique<parallel::ElasticAveragingSync>(groups, options.config.averaging, *options.replica);
    out.elastic = made.get();
    return made;
  }
  if (options.config.averaging.on()) {
    return std::make_unique<parallel::AveragingSync>(
        groups, options.config.averaging, precision::scalar_type(parts.settings.precision.communication_type()));
  }
  if (options.gradient_sync) {
    return options.gradient_sync(groups);
  }
  const at::ScalarType travel = precision::scalar_type(parts.settings.precision.communication_type());
  std::unique_ptr<parallel::AllReduceSync> plain;
  if (shards_states(parts, options.config) || shards_gradients(parts, options.config)) {
    plain = std::make_unique<zero::ShardedSync>(groups, options.config.data_parallel, travel);
  } else {
    plain = std::make_unique<parallel::AllReduceSync>(groups, options.config.data_parallel, travel);
  }
  if (compressing_optimizer(options.config) != nullptr || options.config.compression.on()) {
    return compressed(std::move(plain), parts, options.config);
  }
  return plain;
}

// A GPU that cannot be used is an error of initialize(), not of the first backward.
void open_groups(const Parts& parts, const parallel::GradientSync& sync) {
  if (parts.device().is_cpu()) {
    return;
  }
  std::vector<comm::Group> groups = {parts.ranks.everyone, parts.ranks.group,       parts.ranks.pipe,
                                     parts.ranks.tensor,   parts.ranks.model_ranks, sync.step_group()};
  const std::vector<comm::Group> of_sync = sync.groups().every();
  groups.insert(groups.end(), of_sync.begin(), of_sync.end());
  for (const comm::Group& group : groups) {
    group.open(parts.device());
  }
  parts.ranks.context.open(parts.device(), comm::Neighbours::ring); // keys and values go round
}

bool any_has_several_reduce_groups(const Parts& parts, const parallel::GradientSync& sync) {
  at::Tensor most = torch::tensor({std::ssize(sync.groups().all())}, torch::kInt64);
  parts.ranks.everyone.all_reduce(most, comm::ReduceOp::max, "number of reduce groups").wait();
  return most.item<int64_t>() > 1;
}

} // namespace

void build_agreement(Parts& parts, const InitializeOptions& options) {
  check_compressing_optimizer(options.config);
  check_worker(options);
  Agreement& out = parts.agreement;
  parallel::ReduceGroups groups(
      parts.ranks.group, options.reduce_groups ? options.reduce_groups(parts.ranks.group) : std::vector<comm::Group>());
  out.program_groups = static_cast<int>(groups.all().size()) - 1;
  shard_within(groups, options.config.zero);
  if (parts.ranks.tensor.size() > 1) {
    // Buffers of their own, which are laid out the same on all tensor ranks: sums are added in an order that may depend
    // on the place in a buffer.
    out.whole.is_sum = options.sequence_parallel;
    out.whole.group = groups.add(options.sequence_parallel ? parts.ranks.stage : parts.ranks.group);
    for (int number = 1; number <= out.program_groups && !options.sequence_parallel; ++number) {
      out.whole.of_program.push_back(groups.add(groups.at(number)));
    }
  }
  out.sync = make_sync(parts, out, groups, options);
  check_together(parts.ranks.everyone, [&] { check_step_group(*out.sync); });
  open_groups(parts, *out.sync);
  out.several_reduce_groups = any_has_several_reduce_groups(parts, *out.sync);
}

} // namespace trireme::engine
