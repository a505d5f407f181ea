#include <trireme/engine/same_options.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/exchange.h>
#include <trireme/comm/differences.h>
#include <trireme/engine/same_data.h>

#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <iterator>
#include <string>
#include <vector>

namespace trireme::engine {
namespace {

using nlohmann::ordered_json;
using Pointer = ordered_json::json_pointer;

// Keys that may differ between ranks: where files are (whether there are any is compared), how the disk is used, and
// what is printed.
constexpr std::array kPaths = {"/zero_optimization/offload_optimizer/nvme_path",
                               "/zero_optimization/offload_param/nvme_path", "/activation_checkpointing/nvme_path"};
constexpr std::array kOwn = {"aio",        "steps_per_print", "wall_clock_breakdown", "memory_breakdown",
                             "dump_state", "log_level",       "csv_monitor",          "tensorboard"};
// Compared after they are resolved: any two determine the third.
constexpr std::array kBatchKeys = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"};
constexpr std::array kScheduleNames = {"naive",       "gpipe",       "1f1b", "interleaved",
                                       "zero-bubble", "forward-only"}; // in the order of pipeline::ScheduleKind

ordered_json rules_of(const tensor::TensorParallelKeys& keys) {
  ordered_json rules = ordered_json::array();
  for (const tensor::SplitRule& rule : keys.rules) {
    rules.push_back({{"kind", tensor::kind_name(rule.kind)},
                     {"pattern", rule.pattern},
                     {"grain", rule.grain},
                     {"blocks", rule.blocks}});
  }
  return rules;
}

ordered_json groups_of(const std::vector<ParameterGroup>& groups) {
  ordered_json all = ordered_json::array();
  for (const ParameterGroup& group : groups) {
    all.push_back({{"lr_factor", group.lr_factor},
                   {"weight_decay", group.weight_decay ? ordered_json(*group.weight_decay) : ordered_json(nullptr)},
                   {"whether it chooses by name", group.chooses != nullptr},
                   {"number of parameters", group.parameters.size()}});
  }
  return all;
}

ordered_json pipeline_of(const pipeline::PipelineOptions& options) {
  return {{"stages", options.stages},
          {"schedule", kScheduleNames[static_cast<size_t>(options.schedule)]},
          {"whether there is a custom_schedule", static_cast<bool>(options.custom_schedule)},
          {"chunks", options.chunks},
          {"partition", options.partition},
          {"bounds", options.bounds},
          {"allow_empty_stages", options.allow_empty_stages},
          {"activation_checkpoint_interval", options.activation_checkpoint_interval},
          {"seed_layers", options.seed_layers},
          {"base_seed", options.base_seed}};
}

// "/optimizer/params/lr" as users write it.
std::string name_of(const std::string& pointer) {
  if (pointer == "/zero_optimization/stage") {
    return "the ZeRO stage";
  }
  std::string name = pointer.substr(1);
  std::replace(name.begin(), name.end(), '/', '.');
  const std::string outer = "zero_optimization.";
  return name.starts_with(outer + "offload_") ? name.substr(outer.size()) : name;
}

// Beginnings of the keys of what is compared of a data set, and the value of a checksum that is unknown, which is equal
// to any other.
constexpr const char* kSamples = "the number of samples of ";
constexpr const char* kSets = "the sets of ";
constexpr const char* kChecksum = "the checksum of ";
constexpr const char* kUnknown = "unknown";
constexpr const char* kTrainingData = "training_data";

ordered_json facts_of(const data::Dataset* data, const std::string& name) {
  const uint64_t checksum = data != nullptr ? data->checksum() : 0;
  return {{kSamples + name, data != nullptr ? data->size() : 0},
          {kSets + name, data != nullptr ? data->fingerprint() : 0},
          {kChecksum + name, checksum != 0 ? ordered_json(checksum) : ordered_json(kUnknown)}};
}

bool is_unknown(const comm::LeafDifference& difference) {
  return difference.path.substr(1).starts_with(kChecksum) &&
         std::ranges::any_of(difference.values,
                             [](const auto& value) { return value.text == concat('"', kUnknown, '"'); });
}

// Collective over `group`. Reports the first difference.
void compare(const comm::Group& group, const ordered_json& options, const data::Dataset* data = nullptr) {
  std::vector<comm::LeafDifference> found = comm::differences(group, options, "options of initialize()");
  std::erase_if(found, is_unknown);
  if (found.empty()) {
    return;
  }
  const comm::LeafDifference& first = found.front();
  const std::string key = first.path.substr(1);
  if (data != nullptr && (key.starts_with(kSamples) || key.starts_with(kSets) || key.starts_with(kChecksum))) {
    throw InputError("engine",
                     concat(first.ranks(), " differ in ", key, ": ", first.other(), " and ", first.first(), " (",
                            data->describe(), ')'),
                     "Copy the same files of data to every host.");
  }
  const std::string more = found.size() > 1 ? concat("; and in ", found.size() - 1, " more") : "";
  throw InputError(
      "engine",
      concat(first.ranks(), " differ in ", name_of(first.path), ": ", first.other(), " and ", first.first(), more),
      "Give initialize() the same configuration and options on every rank.");
}

} // namespace

ordered_json compared_options(const config::EngineConfig& config) {
  config::EngineConfig used = config;
  used.optimizer = config.optimizer_or_adamw();
  ordered_json json = config::to_json(used);
  for (const char* path : kPaths) {
    ordered_json& place = json.at(Pointer(path));
    place = !place.is_null();
  }
  for (const char* key : kOwn) {
    json.erase(key);
  }
  for (const char* key : kBatchKeys) {
    json.erase(key);
  }
  if (json["scheduler"].is_null()) {
    json["scheduler"] = {{"type", "constant"}};
  }
  // Options that are not in the JSON, or not if they have no effect.
  const parallel::AveragingOptions& averaging = config.averaging;
  json["parameter_averaging"] = {{"every", averaging.every},
                                 {"outer_optimizer", parallel::AveragingOptions::name(averaging.outer)},
                                 {"outer_lr", averaging.outer_lr},
                                 {"outer_momentum", averaging.outer_momentum},
                                 {"states", parallel::AveragingOptions::name(averaging.states)},
                                 {"start_step", averaging.start_step},
                                 {"elastic", averaging.elastic}};
  const compress::GradientCompressionOptions& compression = config.compression;
  json["gradient_compression"] = {{"kind", compress::GradientCompressionOptions::name(compression.kind)},
                                  {"rank", compression.rank},
                                  {"ratio", compression.ratio},
                                  {"start_step", compression.start_step}};
  const parallel::ServerOptions& server = config.server;
  json["parallel"]["sync"] = {{"servers", server.servers},
                              {"mode", parallel::ServerOptions::name(server.mode)},
                              {"staleness", server.staleness},
                              {"timeout_s", server.timeout_s},
                              {"snapshot_every", server.snapshot_every},
                              {"sparse_rows", server.sparse_rows}};
  json["tensor_parallel"]["rules"] = rules_of(config.tensor_parallel);
  json["bucket_bytes"] = config.data_parallel.bucket_bytes;
  json["first_bucket_bytes"] = config.data_parallel.first_bucket_bytes;
  json["broadcast_at_start"] = config.data_parallel.broadcast_at_start;
  json["activation_checkpointing"]["least_bytes"] = config.activations.least_bytes;
  json["checkpoint"]["keep_last"] = config.checkpoint.keep_last;
  json["checkpoint"]["verify_hashes"] = config.checkpoint.verify_hashes;
  json["seed"] = config.seed;
  return json;
}

void check_same_options(const comm::Group& ranks, const InitializeOptions& options) {
  ordered_json json = compared_options(options.config);
  if (options.pipeline) {
    json["pipeline"] = pipeline_of(options.pipeline->options());
  }
  json["the number of parameter_groups"] = options.parameter_groups.size();
  json["parameter_groups"] = groups_of(options.parameter_groups);
  json["sequence_parallel"] = options.sequence_parallel;
  json["whether there is a pipeline"] = options.pipeline != nullptr;
  json["sync"] = options.sync ? concat("a sync of kind \"", options.sync->kind, '"') : "none";
  json["whether there are reduce_groups"] = options.reduce_groups != nullptr;
  json["whether there is a placement"] = options.placement != nullptr;
  json["whether there is training_data"] = options.training_data != nullptr;
  json["whether there is a training_loader"] = options.training_loader != nullptr;
  const data::Dataset* const data = options.training_data.get();
  json.update(facts_of(data, kTrainingData));
  json["shuffle"] = options.shuffle;
  json["whether there is an order of the samples"] = options.order != nullptr;
  json["whether there is a collate"] = options.collate != nullptr;
  ordered_json axes = ordered_json::array();
  for (const mesh::Axis& axis : options.mesh ? options.mesh->shape().axes() : std::vector<mesh::Axis>()) {
    axes.push_back(concat(axis.name, ' ', axis.size));
  }
  json["axes of the mesh"] = axes;
  compare(ranks, json, data);
}

void check_same_data(const comm::Group& ranks, const data::Dataset* data, const std::string& name) {
  ordered_json json = facts_of(data, name);
  json["whether there is " + name] = data != nullptr;
  compare(ranks, json, data);
}

void check_same_sizes(const Parts& parts) {
  compare(parts.ranks.everyone,
          {{"the micro-batch", parts.settings.batch.micro},
           {"gradient_accumulation_steps", parts.settings.batch.accumulation},
           {"the type of computation", precision::type_name(parts.settings.precision.compute)},
           {"the kind of device", c10::DeviceTypeName(parts.device().type(), /*lower_case=*/true)}});
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

namespace {

// Calls f() where `calls`, in a thread, until it is done on all ranks that do.
void call_and_wait(const comm::Group& ranks, bool calls, std::string_view what, const std::function<void()>& f) {
  constexpr std::chrono::milliseconds kBetweenSigns{250};
  check_together(ranks, [&] {
    std::future<void> called;
    if (calls) {
      called = std::async(std::launch::async, f);
    }
    at::Tensor goes_on = at::ones({1}, at::kInt);
    do {
      goes_on.fill_(called.valid() && called.wait_for(kBetweenSigns) != std::future_status::ready ? 1 : 0);
      ranks.all_reduce(goes_on, comm::ReduceOp::max, what).wait();
    } while (goes_on.item<int>() != 0);
    if (called.valid()) {
      called.get();
    }
  });
}

} // namespace

void call_on_first(const comm::Group& ranks, const std::function<void()>& f) {
  call_and_wait(ranks, ranks.rank() == 0, "rank 0 works alone", f);
}

void call_on_each_host(const comm::World& world, const std::function<void()>& f) {
  call_and_wait(world.group(), world.local_rank() == 0, "one rank of each host works alone", f);
}

} // namespace trireme::engine
