#include <trireme/config/engine_config.h>

#include <trireme/config/activations_json.h>
#include <trireme/config/offload_json.h>
#include <trireme/config/optimizer_json.h>
#include <trireme/config/precision_json.h>

#include <nlohmann/json.hpp>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;

template <typename T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json to_json(const MonitorSection& section) {
  return {{"enabled", section.enabled}, {"output_path", section.output_path}, {"job_name", section.job_name}};
}

// A rule each, with what tp_grain_size and shape made of it.
ordered_json layer_specs(const tensor::TensorParallelKeys& keys) {
  using Kind = tensor::SplitRule::Kind;
  ordered_json out = ordered_json::array();
  for (const tensor::SplitRule& rule : keys.rules) {
    const bool gathers = rule.kind == Kind::column_gathered;
    ordered_json spec = {{"patterns", {rule.pattern}},
                         {"partition_type", tensor::kind_name(gathers ? Kind::column : rule.kind)},
                         {"gather_output", gathers}};
    if (rule.blocks > 1) {
      spec["shape"] = {rule.blocks, -1};
    }
    out.push_back(spec);
  }
  return out;
}

ordered_json averaging_json(const parallel::AveragingOptions& options) {
  if (!options.on()) {
    return nullptr;
  }
  return {{"every", options.every},
          {"outer_optimizer", parallel::AveragingOptions::name(options.outer)},
          {"outer_lr", options.outer_lr},
          {"outer_momentum", options.outer_momentum},
          {"states", parallel::AveragingOptions::name(options.states)},
          {"start_step", options.start_step},
          {"elastic", options.elastic}};
}

ordered_json compression_json(const compress::GradientCompressionOptions& options) {
  if (!options.on()) {
    return nullptr;
  }
  ordered_json out = {{"kind", compress::GradientCompressionOptions::name(options.kind)},
                      {"start_step", options.start_step}};
  using Kind = compress::GradientCompressionOptions::Kind;
  if (options.kind == Kind::power_sgd) {
    out["rank"] = options.rank;
  } else if (options.kind == Kind::top_k) {
    out["ratio"] = options.ratio;
  }
  return out;
}

const char* tag_validation_name(checkpoint::TagValidation value) {
  switch (value) {
    case checkpoint::TagValidation::ignore:
      return "Ignore";
    case checkpoint::TagValidation::warn:
      return "Warn";
    case checkpoint::TagValidation::fail:
      return "Fail";
  }
  return "?";
}

} // namespace

ordered_json to_json(const EngineConfig& config) {
  const parallel::DataParallelOptions& data = config.data_parallel;
  const pipeline::PipelineOptions pipeline = config.pipeline.over({});
  ordered_json out = {
      {"train_batch_size", or_null(config.batch.train)},
      {"train_micro_batch_size_per_gpu", or_null(config.batch.micro)},
      {"gradient_accumulation_steps", or_null(config.batch.accumulation)},
      {"gradient_clipping", config.clipping()},
      {"optimizer", to_json(config.optimizer)},
      {"scheduler", to_json(config.schedule)},
      {"pipeline",
       {{"stages", config.pipeline.stages ? ordered_json(*config.pipeline.stages) : ordered_json("auto")},
        {"partition", pipeline.partition},
        {"seed_layers", pipeline.seed_layers},
        {"activation_checkpoint_interval", pipeline.activation_checkpoint_interval}}},
      {"activation_checkpointing", to_json(config.activations)},
      {"tensor_parallel",
       {{"autotp_size", config.tensor_parallel.size},
        {"tp_grain_size", config.tensor_parallel.rules.empty() ? 1 : config.tensor_parallel.rules.front().grain},
        {"partition_config", {{"layer_specs", layer_specs(config.tensor_parallel)}}}}},
      {"step_in_backward", config.step_in_backward},
      {"parameter_averaging", averaging_json(config.averaging)},
      {"gradient_compression", compression_json(config.compression)},
      {"zero_optimization",
       {{"stage", config.zero.stage},
        {"reduce_bucket_size", data.bucket_bytes / 4},
        {"stage3_prefetch_bucket_size", config.zero.prefetch_elements
                                            ? nlohmann::ordered_json(*config.zero.prefetch_elements)
                                            : nlohmann::ordered_json(nullptr)},
        {"stage3_max_live_parameters", config.zero.max_live_elements
                                           ? nlohmann::ordered_json(*config.zero.max_live_elements)
                                           : nlohmann::ordered_json(nullptr)},
        {"mics_shard_size", config.zero.shard_size.value_or(-1)},
        {"offload_optimizer", to_json(config.offload.optimizer)},
        {"offload_param", to_json(config.offload.parameters)},
        {"stage3_param_persistence_threshold", config.zero.param_persistence_threshold},
        {"stage3_model_persistence_threshold", config.zero.model_persistence_threshold}}},
      {"aio", to_json(config.offload.aio)},
      {"prescale_gradients", data.prescale_gradients},
      {"broadcast_buffers", data.broadcast_buffers},
      {"sync_batch_norm", data.sync_batch_norm},
      {"gradient_predivide_factor", data.gradient_predivide_factor},
      {"gradient_allreduce_op", data.op == parallel::DataParallelOptions::Op::sum ? "sum" : "mean"},
      {"gradient_allreduce_algorithm",
       parallel::DataParallelOptions::kAlgorithmNames[static_cast<size_t>(data.algorithm)]},
      {"dataloader_drop_last", config.dataloader_drop_last},
      {"steps_per_print", or_null(config.steps_per_print)},
      {"wall_clock_breakdown", config.wall_clock_breakdown},
      {"memory_breakdown", config.memory_breakdown},
      {"dump_state", config.dump_state},
      {"log_level", or_null(config.log_level)},
      {"csv_monitor", to_json(config.csv_monitor)},
      {"tensorboard", to_json(config.tensorboard)},
      {"checkpoint", {{"tag_validation", tag_validation_name(config.checkpoint.tag_validation)}}},
  };
  write_precision(config.precision, out);
  return out;
}

} // namespace trireme::config
