#include <trireme/train/memory_check.h>

#include <trireme/train/offload_check.h>
#include <trireme/train/run_estimate.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/memory/aio/probe.h>

#include <optional>
#include <utility>

namespace trireme::train {
namespace {

constexpr const char* kRecompute = R"(engine.activation_checkpointing={"policy": "recompute"})";

/// One change to a run: overrides, and the number of ranks.
struct Change {
  std::vector<std::string> overrides;
  int64_t ranks;
};

std::vector<Change> zero_changes(const config::RunConfig& run, int64_t ranks) {
  std::vector<Change> changes = {{{}, ranks}};
  for (int stage = run.engine.zero.stage + 1; stage <= 3 && ranks > ranks_of_replica(run); ++stage) {
    changes.push_back({{concat("engine.zero_optimization.stage=", stage)}, ranks});
  }
  return changes;
}

// Without GPUs' memory, they are known to have it for their present share, but not for more.
bool on_device(const config::RunConfig& run) {
  return run.training.device.starts_with("cuda");
}

// Changes that keep the samples per step.
std::vector<Change> batch_changes(const config::RunConfig& run, int64_t ranks) {
  std::vector<Change> changes = {{{}, ranks}};
  const config::BatchTriple batch = run.engine.batch_for(ranks / ranks_of_replica(run));
  for (int64_t micro = batch.micro - 1; micro >= 1; --micro) {
    if (batch.micro % micro == 0) {
      changes.push_back(
          {{concat("engine.train_batch_size=", batch.train), concat("engine.train_micro_batch_size_per_gpu=", micro),
            concat("engine.gradient_accumulation_steps=", batch.accumulation * (batch.micro / micro))},
           ranks});
    }
  }
  return changes;
}

std::vector<Change> precision_changes(const config::RunConfig& run, int64_t ranks) {
  std::vector<Change> changes = {{{}, ranks}};
  if (run.engine.precision.compute == precision::Type::fp32 && !run.engine.precision.autocast) {
    changes.push_back({{"engine.bf16.enabled=true"}, ranks});
  }
  return changes;
}

// Stages, each with recomputed layers, and fewer ranks.
std::vector<Change> layout_changes(const config::RunConfig& run, int64_t ranks) {
  std::vector<Change> changes = {{{}, ranks}};
  const bool has_layers = run.model.traits.layers;
  const activations::Options& activations = run.engine.activations;
  if (activations.on() && !on_device(run) &&
      !(activations.policy && activations::recomputes(*activations.policy))) { // else the interval has no effect
    changes.push_back({{kRecompute}, ranks});
  }
  if (has_layers && run.pipeline.activation_checkpoint_interval == 0) {
    changes.push_back({{"engine.pipeline.activation_checkpoint_interval=1"}, ranks});
  }
  for (int64_t pipe = run.parallel.pipe + 1; has_layers && pipe <= ranks; ++pipe) {
    if (ranks % pipe == 0) {
      changes.push_back({{concat("parallel.pipe=", pipe), R"(parallel.data="auto")"}, ranks});
      changes.push_back({{concat("parallel.pipe=", pipe), R"(parallel.data="auto")",
                          "engine.pipeline.activation_checkpoint_interval=1"},
                         ranks});
    }
  }
  for (int64_t replicas = on_device(run) ? 0 : ranks / ranks_of_replica(run) / 2; replicas >= 1; replicas /= 2) {
    changes.push_back({{R"(parallel.data="auto")"}, replicas * ranks_of_replica(run)});
  }
  return changes;
}

// States, and at stage 3 parameters, on the host of a GPU that is too small.
std::vector<Change> host_changes(const config::RunConfig& run, int64_t ranks) {
  const offload::Options& offload = run.engine.offload;
  const std::string states = "engine.zero_optimization.offload_optimizer.device=cpu";
  std::vector<Change> changes;
  if (offload.optimizer.place == offload::Place::device) {
    changes.push_back({{states}, ranks});
    if (run.engine.zero.stage < 2) {
      changes.push_back({{"engine.zero_optimization.stage=2", states}, ranks});
    }
  }
  if (offload.parameters.place == offload::Place::device) {
    changes.push_back(
        {{"engine.zero_optimization.stage=3", "engine.zero_optimization.offload_param.device=cpu"}, ranks});
    if (offload.optimizer.place == offload::Place::device) {
      changes.back().overrides.push_back(states);
    }
  }
  return changes;
}

// Those; then states, and at stage 3 parameters, in files of this folder, if it is on a disk. Before that, recomputes
// activations that a GPU would move to its host.
std::vector<Change> file_changes(const config::RunConfig& run, int64_t ranks, bool small_device) {
  std::vector<Change> changes = {{{}, ranks}};
  if (small_device) {
    for (Change& change : host_changes(run, ranks)) {
      changes.push_back(std::move(change));
    }
  }
  const activations::Options& activations = run.engine.activations;
  const bool recomputes = on_device(run) && (activations.inputs_to_host ||
                                             (activations.policy && activations::to_host(*activations.policy)));
  if (recomputes) {
    changes.push_back({{kRecompute}, ranks});
  }
  const std::string disk = aio::filesystem_of(".");
  if (run.engine.offload.uses_files() || aio::is_memory(disk) || disk.empty()) {
    return changes;
  }
  const std::string states =
      R"(engine.zero_optimization.offload_optimizer={"device": "nvme", "nvme_path": ".", "pipeline_read": true, "pipeline_write": true})";
  const std::string parameters =
      R"(engine.zero_optimization.offload_param={"device": "nvme", "nvme_path": ".", "max_in_cpu": 0})";
  for (const Change& before : std::vector<Change>(changes)) {
    for (const std::vector<std::string>& more :
         {std::vector{states}, {"engine.zero_optimization.stage=3", states, parameters}}) {
      changes.push_back(before);
      changes.back().overrides.insert(changes.back().overrides.end(), more.begin(), more.end());
    }
  }
  return changes;
}

bool files_fit(const estimate::Run& run) {
  try {
    check_files(run);
  } catch (const InputError&) {
    return false;
  }
  return true;
}

// Returns nothing if the configuration is invalid, or its files do not fit.
std::optional<estimate::Need> need_of(const std::filesystem::path& run_file, const std::vector<std::string>& overrides,
                                      int64_t ranks, const config::RunTypes& types) {
  try {
    const config::RunConfig run = config::read_run_file(run_file, overrides, config::Files::may_be_absent, types);
    const estimate::Run described = describe_run(run, ranks).run;
    return files_fit(described) ? std::optional(estimate::need_of(described)) : std::nullopt;
  } catch (const InputError&) {
    return std::nullopt;
  }
}

std::vector<std::string> arguments_of(const std::vector<std::string>& overrides, int64_t ranks, int64_t ranks_before) {
  std::vector<std::string> arguments;
  if (ranks != ranks_before) {
    arguments.push_back(concat("-n ", ranks));
  }
  for (const std::string& override : overrides) {
    arguments.push_back(
        concat("--set ", override.find('"') == std::string::npos ? override : concat('\'', override, '\'')));
  }
  return arguments;
}

} // namespace

Fitting nearest_fitting(const std::filesystem::path& run_file, const std::vector<std::string>& overrides, int64_t ranks,
                        const estimate::MemoryAtHand& memory, const config::RunTypes& types) {
  const config::RunConfig run = config::read_run_file(run_file, overrides, config::Files::may_be_absent, types);
  constexpr int kMostChanges = 4;
  const bool small_device = memory.device_bytes < estimate::MemoryAtHand::kUnlimited;
  Fitting smallest;
  std::optional<Fitting> found;
  size_t found_cost = SIZE_MAX;
  const auto layouts = layout_changes(run, ranks);
  const auto precisions = precision_changes(run, ranks);
  const size_t of_files = on_device(run) ? 1'000 : 300'000;
  for (size_t l = 0; l < layouts.size(); ++l) {
    std::vector<std::string> with_layout = overrides;
    with_layout.insert(with_layout.end(), layouts[l].overrides.begin(), layouts[l].overrides.end());
    const int64_t count = layouts[l].ranks;
    std::optional<config::RunConfig> laid_out;
    try {
      laid_out = config::read_run_file(run_file, with_layout, config::Files::may_be_absent, types);
      laid_out->engine.batch_for(count / ranks_of_replica(*laid_out));
    } catch (const InputError&) {
      continue;
    }
    const auto batches = batch_changes(*laid_out, count);
    const auto stages = zero_changes(*laid_out, count);
    const auto files = file_changes(*laid_out, count, small_device);
    const auto consider = [&](size_t p, size_t b, size_t z, size_t f) {
      // Prefers fewer kinds of change, then the mildest: stages, batches, types, layouts, files.
      const size_t kinds = (l > 0) + (p > 0) + (b > 0) + (z > 0) + (f > 0);
      const size_t cost = kinds * 1'000'000 + f * of_files + l * 10'000 + p * 5'000 + b * 10 + z;
      if (kinds > kMostChanges || cost >= found_cost) {
        return;
      }
      std::vector<std::string> changes = layouts[l].overrides;
      for (const auto* more :
           {&precisions[p].overrides, &batches[b].overrides, &stages[z].overrides, &files[f].overrides}) {
        changes.insert(changes.end(), more->begin(), more->end());
      }
      std::vector<std::string> all = overrides;
      all.insert(all.end(), changes.begin(), changes.end());
      const auto need = need_of(run_file, all, count, types);
      if (!need) {
        return;
      }
      const int64_t peak = small_device ? need->peak_on_device : need->peak_of_all;
      if (estimate::fits(*need, memory)) {
        found = {arguments_of(changes, count, ranks), count, peak};
        found_cost = cost;
      } else if (smallest.peak_of_all == 0 || peak < smallest.peak_of_all) {
        smallest = {{}, count, peak};
      }
    };
    for (size_t p = 0; p < precisions.size(); ++p) {
      for (size_t b = 0; b < batches.size(); ++b) {
        for (size_t z = 0; z < stages.size(); ++z) {
          for (size_t f = 0; f < files.size(); ++f) {
            consider(p, b, z, f);
          }
        }
      }
    }
  }
  return found.value_or(smallest);
}

namespace {

// Refuses a run for this reason, with the nearest configuration that fits.
[[noreturn]] void refuse(const std::string& why, const std::filesystem::path& run_file,
                         const std::vector<std::string>& overrides, int64_t ranks, const estimate::MemoryAtHand& memory,
                         const config::RunTypes& types) {
  const bool of_gpu = memory.device_bytes < estimate::MemoryAtHand::kUnlimited;
  const Fitting fitting = nearest_fitting(run_file, overrides, ranks, memory, types);
  const std::string larger = of_gpu ? "a smaller model, a GPU with more memory, or more of them (`trireme plan`)."
                                    : "a smaller model, or more hosts (--hostfile).";
  const std::string next =
      !fitting.arguments.empty() ? concat("Fits with about ", format_bytes(fitting.peak_of_all),
                                          of_gpu ? " on the GPU: " : ": ", join(fitting.arguments, " "), '.')
      : fitting.ranks == 0 && !of_gpu
          ? std::string(
                "None of the changes tried fits, in memory or in files. Use a smaller model, a folder with more "
                "room, or more hosts (--hostfile).")
          : concat("None of the changes tried fits; the smallest needs ", format_bytes(fitting.peak_of_all), " on ",
                   of_gpu ? "a GPU" : concat(fitting.ranks, fitting.ranks == 1 ? " rank" : " ranks"), ". Use ", larger);
  std::vector<std::string> shown = arguments_of(overrides, ranks, 0);
  shown.insert(shown.begin(), run_file.string());
  throw InputError("memory",
                   concat("this run cannot fit: ", why, ", and the estimate allows for an error of ",
                          static_cast<int>(100 * (estimate::kMargin - 1) + 0.5), " %"),
                   concat(next, " `trireme estimate ", join(shown, " "),
                          "` shows the details; --no-memory-check starts the run anyway."));
}

} // namespace

void check_memory(const estimate::Run& described, const std::filesystem::path& run_file,
                  const std::vector<std::string>& overrides, int64_t ranks, const estimate::MemoryAtHand& memory,
                  const config::RunTypes& types) {
  const std::string why = estimate::why_too_large(estimate::need_of(described), memory, ranks);
  if (!why.empty()) {
    refuse(why, run_file, overrides, ranks, memory, types);
  }
}

void check_device_memory(const estimate::Run& described, const std::filesystem::path& run_file,
                         const std::vector<std::string>& overrides, int64_t ranks, int64_t device_bytes, bool here,
                         const config::RunTypes& types) {
  estimate::MemoryAtHand memory = here ? estimate::memory_at_hand() : estimate::MemoryAtHand();
  memory.device_bytes = device_bytes;
  const std::string why = estimate::why_too_large_on_device(estimate::need_of(described), memory);
  if (why.empty()) {
    return;
  }
  std::vector<std::string> on_gpu = overrides;
  on_gpu.emplace_back("training.device=cuda");
  refuse(why, run_file, on_gpu, ranks, memory, types);
}

} // namespace trireme::train
