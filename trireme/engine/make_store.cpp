#include <trireme/engine/make_store.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/memory/offload/disk_store.h>
#include <trireme/memory/offload/host_store.h>
#include <trireme/memory/offload/places.h>

#include <filesystem>
#include <string>
#include <utility>

namespace trireme::engine {
namespace {

using offload::Place;

// The same for all spellings of a path, whether it exists or not.
std::string key_of(const std::string& nvme_path) {
  return nvme_path.empty() ? "" : (std::filesystem::absolute(nvme_path) / "").lexically_normal().string();
}

// Opens one folder of this rank for all stores with the same path. A replica with a world of its own has its own
// folder.
void open_folder(Parts& parts, const std::string& nvme_path) {
  std::shared_ptr<offload::RankFolder>& folder = parts.ranks.offload_folders[key_of(nvme_path)];
  if (!folder) {
    folder = offload::RankFolder::open(
        nvme_path, parts.ranks.worker * parts.ranks.everyone.size() +
                       parts.ranks.everyone.members()[static_cast<size_t>(parts.ranks.everyone.rank())]);
  }
  if (!parts.ranks.offloaded) {
    parts.ranks.offloaded = std::make_shared<offload::Traffic>();
  }
}

std::unique_ptr<offload::DiskStore> make(const Parts& parts, const std::string& nvme_path, offload::DiskOptions disk,
                                         const aio::Options& aio) {
  disk.aio = aio;
  return std::make_unique<offload::DiskStore>(parts.ranks.offload_folders.at(key_of(nvme_path)), std::move(disk),
                                              parts.ranks.offloaded);
}

// A store for the part of the states that `ratio` moves; the rest stays on the device.
std::unique_ptr<bucket::StateStore> in_part(std::unique_ptr<bucket::StateStore> store, const Parts& parts,
                                            double ratio) {
  return ratio < 1 && !parts.device().is_cpu() ? offload::make_partial_store(std::move(store), ratio)
                                               : std::move(store);
}

// Several ranks have the same shard, and sum their gradients in the gradient buffer.
bool has_copies(const Parts& parts) {
  const parallel::ReduceGroups& groups = parts.agreement.sync->groups();
  for (int group = 0; group < static_cast<int>(groups.all().size()); ++group) {
    if (groups.replicas(group).size() > 1) {
      return true;
    }
  }
  return false;
}

} // namespace

zero::Sharding sharding_of(const config::EngineConfig& config, int data_ranks, at::Device device) {
  const bool moves_gradients = !device.is_cpu() && config.offload.optimizer.place != Place::device;
  return zero::sharding_of(config.zero.stage, data_ranks, config.offload.parameters.place != Place::device,
                           moves_gradients);
}

void prepare_offload(Parts& parts, const InitializeOptions& options) {
  const config::EngineConfig& config = options.config;
  const offload::OptimizerOptions& states = config.offload.optimizer;
  const offload::ParameterOptions& parameters = config.offload.parameters;
  if (states.place == Place::device && parameters.place == Place::device && !states.delayed_update) {
    return;
  }
  if (options.state_store) {
    log::info("InitializeOptions::state_store replaces offload of the configuration");
    return;
  }
  if (states.place == Place::nvme) {
    open_folder(parts, states.nvme_path);
  }
  if (parameters.place == Place::nvme) {
    open_folder(parts, parameters.nvme_path);
  }
  if (!parts.device().is_cpu()) {
    return;
  }
  constexpr const char* kThereAlready =
      " to \"cpu\": this rank trains on the CPU, where everything is in host memory already; it ";
  if (states.place == Place::host) {
    log::info("offload_optimizer", kThereAlready, "has no effect");
  }
  if (parameters.place == Place::host) {
    log::info("offload_param", kThereAlready,
              parts.ranks.group.size() > 1
                  ? "has no effect"
                  : "moves nothing. Parameters of a single data rank are sharded because of it, so norms "
                    "may differ in the last digit");
  }
  if (states.place != Place::device && (states.ratio < 1 || states.delayed_update)) {
    const char* const keys = states.ratio == 1       ? "delayed_update is"
                             : states.delayed_update ? "ratio and delayed_update are"
                                                     : "ratio is";
    log::info("offload_optimizer to \"", offload::word(states.place), "\": ", keys,
              " for a GPU and without effect, because this rank trains on the CPU");
  }
}

std::unique_ptr<bucket::StateStore> make_optimizer_store(const Parts& parts, const InitializeOptions& options) {
  const offload::OptimizerOptions& wanted = options.config.offload.optimizer;
  if (options.state_store) {
    return options.state_store();
  }
  if (wanted.place == Place::nvme) {
    return in_part(make(parts, wanted.nvme_path,
                        {.kind = "optimizer states",
                         .buffers = wanted.buffer_count,
                         .pipeline_read = wanted.pipeline_read,
                         .pipeline_write = wanted.pipeline_write,
                         .fast_init = wanted.fast_init},
                        options.config.offload.aio),
                   parts, wanted.ratio);
  }
  return wanted.place == Place::host && !parts.device().is_cpu()
             ? in_part(offload::make_host_store(wanted.pin_memory), parts, wanted.ratio)
             : nullptr;
}

std::shared_ptr<bucket::StateStore> make_parameter_store(const Parts& parts, const InitializeOptions& options) {
  const offload::ParameterOptions& wanted = options.config.offload.parameters;
  if (options.state_store) {
    return options.state_store();
  }
  if (wanted.place == Place::nvme) {
    return make(parts, wanted.nvme_path,
                {.kind = "parameters",
                 .buffers = wanted.buffer_count,
                 .fast_init = true,
                 .elements_in_memory = wanted.max_in_cpu,
                 .pin_memory = wanted.pin_memory},
                options.config.offload.aio);
  }
  return make_early_store(parts, options);
}

std::unique_ptr<bucket::StateStore> make_early_store(const Parts& parts, const InitializeOptions& options) {
  const offload::ParameterOptions& parameters = options.config.offload.parameters;
  return parameters.place == Place::host && !parts.device().is_cpu() ? offload::make_host_store(parameters.pin_memory)
                                                                     : nullptr;
}

bool has_gradients_in_files(const Parts& parts, const InitializeOptions& options) {
  const offload::Options& wanted = options.config.offload;
  return !options.state_store && offload::has_gradients_in_files(wanted, has_copies(parts));
}

std::shared_ptr<bucket::StateStore> make_gradient_store(const Parts& parts, const InitializeOptions& options) {
  const offload::OptimizerOptions& wanted = options.config.offload.optimizer;
  if (has_gradients_in_files(parts, options)) {
    return make(
        parts, wanted.nvme_path,
        {.kind = "gradients", .buffers = wanted.buffer_count, .fast_init = true, .pin_memory = wanted.pin_memory},
        options.config.offload.aio);
  }
  return parts.device().is_cpu() ? nullptr : offload::make_host_store(wanted.pin_memory);
}

std::shared_ptr<bucket::StateStore> make_building_store(const config::EngineConfig& config, int rank) {
  const offload::ParameterOptions& wanted = config.offload.parameters;
  if (config.zero.stage < 3 || wanted.place != Place::nvme) {
    return nullptr;
  }
  offload::DiskOptions disk{.kind = "modules as they are built", .buffers = 3, .fast_init = true};
  disk.aio = config.offload.aio;
  return std::make_shared<offload::DiskStore>(offload::RankFolder::open(wanted.nvme_path, rank, "trireme.building"),
                                              disk, std::make_shared<offload::Traffic>());
}

optim::HostStepOptions host_steps(const Parts& parts, const InitializeOptions& options) {
  const offload::OptimizerOptions& wanted = options.config.offload.optimizer;
  optim::HostStepOptions host;
  host.pinned = wanted.pin_memory;
  if (!parts.device().is_cpu()) {
    host.gradients = make_gradient_store(parts, options);
  }
  host.add_up_there = !has_copies(parts);
  host.delayed = wanted.delayed_update;
  return host;
}

} // namespace trireme::engine
