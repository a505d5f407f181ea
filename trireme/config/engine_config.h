#pragma once

#include <trireme/checkpoint/options.h>
#include <trireme/config/averaging_options.h>
#include <trireme/config/batch_size.h>
#include <trireme/config/compression_options.h>
#include <trireme/config/server_options.h>
#include <trireme/memory/activations/options.h>
#include <trireme/memory/offload/options.h>
#include <trireme/optim/options.h>
#include <trireme/parallel/pipeline/options.h>
#include <trireme/parallel/tensor/split_rules.h>
#include <trireme/precision/options.h>
#include <trireme/shards/data_parallel/options.h>
#include <trireme/shards/zero/options.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::config {

/// One of DeepSpeed's monitors: csv_monitor or tensorboard.
struct MonitorSection {
  bool enabled = false;
  /// Folder; empty: the run's own.
  std::string output_path;
  std::string job_name = "DeepSpeedJobName";
};

/// The configuration of an engine, as in a DeepSpeed JSON. The defaults are DeepSpeed's.
struct EngineConfig {
  BatchKeys batch;
  /// The batch sizes for `data_ranks` data-parallel ranks; see solve().
  BatchTriple batch_for(int64_t data_ranks) const { return solve(batch, data_ranks); }

  /// Largest global gradient norm; 0: no clipping. Absent: 1.0, with a torch optimizer 0.
  std::optional<double> gradient_clipping;
  double clipping() const { return gradient_clipping.value_or(1.0); }
  /// Absent: AdamW with its defaults; optimizer_or_adamw() returns the one in use.
  std::optional<optim::OptimizerOptions> optimizer;
  optim::OptimizerOptions optimizer_or_adamw() const { return optimizer.value_or(optim::OptimizerOptions()); }
  /// Kind `constant` when the JSON has no scheduler.
  optim::ScheduleOptions schedule;
  parallel::DataParallelOptions data_parallel;
  /// Replicas that step alone and average every few steps.
  parallel::AveragingOptions averaging;
  /// Parameter servers instead of ranks that exchange gradients. Not in the JSON; a run file sets it from
  /// parallel.sync.
  parallel::ServerOptions server;
  /// The mean of gradients by compressed messages, for any optimizer.
  compress::GradientCompressionOptions compression;
  zero::ZeroOptions zero;
  /// Data kept in cheaper memory between uses: "offload_optimizer" and "offload_param" of "zero_optimization", and
  /// "aio".
  offload::Options offload;
  /// Policies of activations between forward and backward: "activation_checkpointing".
  activations::Options activations;
  /// Whether a rank keeps anything in files while it trains.
  bool uses_files() const { return offload.uses_files() || activations.uses_nvme(); }
  /// Steps a bucket as soon as its gradients are final, while backward computes the rest. Not with options that need
  /// all gradients first.
  bool step_in_backward = false;
  /// Types of parameters, gradients and communication; the loss scale.
  precision::PrecisionOptions precision;
  /// For a model that is a list of layers: replaces the options of its PipelineModule.
  pipeline::PipelineKeys pipeline;

  /// For a model in one piece, written for one process: initialize() splits it.
  tensor::TensorParallelKeys tensor_parallel;

  bool dataloader_drop_last = false;
  /// Not in the JSON; a run file sets it from training.seed.
  int64_t seed = 1234;

  /// Steps between progress reports; absent: the engine's choice.
  std::optional<int64_t> steps_per_print;
  bool wall_clock_breakdown = false;
  bool memory_breakdown = false;
  /// Prints the configuration as it was read, to_json(), at the start.
  bool dump_state = false;
  /// debug, info, warning or error; absent: TRIREME_LOG or info.
  std::optional<std::string> log_level;
  MonitorSection csv_monitor;
  MonitorSection tensorboard;
  /// tag_validation comes from the JSON, the rest from a run file.
  checkpoint::CheckpointOptions checkpoint;

  /// One sentence for each key that has no effect, or less than expected; to be logged once.
  std::vector<std::string> notes;
  /// The unchanged JSON, to store with a run or a checkpoint and read again.
  nlohmann::ordered_json source = nlohmann::ordered_json::object();
};

/// Writes every value as it was read, defaults included, under DeepSpeed's names.
nlohmann::ordered_json to_json(const EngineConfig& config);

} // namespace trireme::config
