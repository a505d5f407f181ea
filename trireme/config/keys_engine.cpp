#include <trireme/config/verdict_letters.h>

// clang-format off: a line of the table is a line.
namespace trireme::config {
namespace {

Section top_level() {
  return {"engine", "", "A DeepSpeed configuration: an object, or the path of a file that holds one.", false, {
    {"train_batch_size", H, "int|auto >= 1", "", "Samples of one optimizer step over all ranks: micro-batch size x accumulation steps x data ranks. Any two of the three give the third."},
    {"train_micro_batch_size_per_gpu", H, "int|auto >= 1", "", "Samples of one forward pass of one rank. \"auto\": what the other sizes leave, or 8."},
    {"gradient_accumulation_steps", H, "int|auto >= 1", "", "Micro-batches of one rank in one optimizer step; 1 unless it follows from the other two."},
    {"gradient_clipping", H, "real|auto >= 0", "1.0", "Largest global gradient norm; 0 turns clipping off."},
    {"optimizer", H, "object", "null", "The optimizer; without it AdamW with its defaults, and a line in the log that says so."},
    {"scheduler", H, "object", "null", "The learning-rate schedule; without it the rate is constant."},
    {"zero_optimization", H, "object", "null", "Sharding of model states over the data ranks."},
    {"steps_per_print", H, "int >= 1", "null", "Steps between two progress reports."},
    {"wall_clock_breakdown", H, "bool", "false", "Time forward, backward, communication and step one by one."},
    {"memory_breakdown", H, "bool", "false", "Report the memory in use at each report."},
    {"dump_state", H, "bool", "false", "Print the configuration as understood at the start."},
    {"log_level", H, "word debug|info|warning|error", "null", "How much is logged; without it TRIREME_LOG decides."},
    {"prescale_gradients", H, "bool", "false", "Divide gradients by the number of data ranks before the sum instead of after it."},
    {"gradient_predivide_factor", H, "real > 0", "1.0", "Divide gradients by this before the sum and undo it after."},
    {"gradient_allreduce_op", H, "word mean|sum", "\"mean\"", "Average or add the gradients of the data ranks."},
    {"gradient_allreduce_algorithm", H, "word backend|ring|tree|halving-doubling|naive", "\"backend\"", "How a bucket of gradients is all-reduced at stage 0: as the backend does it, or by one of these algorithms over messages, to compare them. Ours; docs/communication.md."},
    {"dataloader_drop_last", H, "bool", "false", "Leave out the last, incomplete batch of an epoch instead of filling it up."},
    {"csv_monitor", H, "object", "null", "Metrics as CSV files."},
    {"tensorboard", H, "object", "null", "Metrics as TensorBoard event files."},
    {"checkpoint", H, "object", "null", "How checkpoints are written."},
    {"data_types", H, "object", "null", "Element types of gradients, parameters and buffers."},
    {"communication_data_type", H, "word fp16|bf16|fp32", "null", "The type in which gradients are sent; by default that of the parameters."},
    {"sparse_gradients", L, "bool", "false", "embedding gradients are sent as dense tensors."},
    {"managed_gradient_accumulation", L, "bool", "true", "the engine counts the micro-batches of a step itself."},
    {"fp16", H, "object", "null", "Half precision with loss scaling."},
    {"bf16", H, "object", "null", "bfloat16 parameters with fp32 master copies."},
    {"bfloat16", H, "object", "null", "Another name of bf16."},
    {"torch_autocast", H, "object", "null", "Automatic mixed precision by operation."},
    {"fp8", H, "object", "null", "Products of linear layers in FP8. Ours; docs/fp8.md."},
    {"amp", R, "object", "null", "NVIDIA apex."},
    {"pipeline", H, "object", "null", "Pipeline stages."},
    {"activation_checkpointing", H, "object", "null", "Activations between forward and backward: kept, recomputed, moved to the host or to files."},
    {"sparse_attention", L, "object", "null", "attention is dense."},
    {"aio", H, "object", "null", "How files of offload are read and written."},
    {"flops_profiler", L, "object", "null", "Count floating-point operations by layer."},
    {"comms_logger", L, "object", "null", "A log of the collectives."},
    {"timers", N, "object", "null", "Timers."},
    {"elasticity", L, "object", "null", "Batch sizes that fit many numbers of ranks."},
    {"tensor_parallel", H, "object", "null", "Layers of a program's own model split over ranks."},
    {"curriculum_learning", L, "switch", "null", "every step sees the full sequence length."},
    {"disable_allgather", N, "bool", "false", "DeepSpeed reads it and never uses it."},
    {"comms_config", N, "object", "null", "DeepSpeed does not read it; its section is called \"comms_logger\"."},
    {"monitor_config", N, "object", "null", "DeepSpeed does not read it; its sections are called \"tensorboard\" and \"csv_monitor\"."},
    {"vocabulary_size", N, "int >= 1", "null", "it only makes DeepSpeed warn about sizes that are not a multiple of 8."},
    {"broadcast_buffers", H, "bool", "true", "Make buffers of the model (BatchNorm's running_mean) those of the first replica before every step. Ours, as in DistributedDataParallel."},
    {"sync_batch_norm", H, "bool", "false", "Let BatchNorm layers take their statistics over all replicas. Ours, as PyTorch's SyncBatchNorm."},
    {"step_in_backward", H, "bool", "false", "Step each bucket as soon as its gradients are final, during backward. Ours; for runs without clipping, loss scale and NaN check."},
    {"parameter_averaging", H, "object", "null", "Replicas step alone and average their parameters every few steps. Ours; docs/parameter_averaging.md."},
    {"gradient_compression", H, "object", "null", "The mean of gradients is compressed, with error feedback. Ours; docs/compressed_communication.md."},
    {"zero_allow_untested_optimizer", N, "bool", "false", "every optimizer here may be used with every ZeRO stage."},
    {"zero_force_ds_cpu_optimizer", N, "bool", "true", "there is one optimizer of each kind, and it runs wherever its state is."},
    {"use_node_local_storage", R, "bool", "false", "it belongs in \"checkpoint\", and is not there yet either."},
    {"max_grad_norm", R, "real", "null", "write \"gradient_clipping\" instead."},
    {"fp32_allreduce", R, "bool", "false", "write \"communication_data_type\": \"fp32\" instead."},
    {"allgather_size", R, "int", "500000000", "write \"allgather_bucket_size\" in \"zero_optimization\" instead."},
    {"seq_parallel_communication_data_type", R, "word fp16|bf16|fp32", "null", "keys and values are sent in their own type. Leave it out.", R"(["fp32"])"},
    {"sequence_parallel_size", R, "int", "1", "write \"parallel\": {\"context\": N, \"context_kind\": \"ulysses\"} in the run file; in C++ InitializeOptions::mesh."},
    {"graph_harvesting", R, "bool", "false", "there are no CUDA graphs. Leave it out."},
    {"use_data_before_expert_parallelism", R, "bool", "false", "there are no experts (MoE). Leave it out."},
    {"data_efficiency", R, "switch", "null", "data sampling and random layer-token drop are not part of this engine. Set \"enabled\" to false."},
    {"progressive_layer_drop", R, "switch", "null", "layers are never dropped. Set \"enabled\" to false."},
    {"eigenvalue", R, "switch", "null", "there is no quantization that needs it. Set \"enabled\" to false."},
    {"quantize_training", R, "switch", "null", "there is no quantization-aware training. Leave the section out."},
    {"compression_training", R, "object", "null", "models are not compressed. Leave the section out."},
    {"weight_quantization", R, "object", "null", "models are not quantized. Leave the section out."},
    {"expert_parallel", R, "switch", "null", "there are no experts (MoE). Leave the section out."},
    {"moe", R, "switch", "null", "there are no experts (MoE). Leave the section out."},
    {"hybrid_engine", R, "switch", "null", "training and generation are two programs: train, then \"trireme generate\". Set \"enabled\" to false."},
    {"compile", R, "switch enabled|deepcompile", "null", "torch.compile needs Python. Leave the section out."},
    {"autotuning", R, "switch", "null", "a run does not tune itself: set the batch sizes, or ask \"trireme plan\". Set \"enabled\" to false."},
    {"nebula", R, "switch", "null", "it is a service of Azure; checkpoints are written by this engine. Set \"enabled\" to false."},
    {"datastates_ckpt", R, "object", "null", "checkpoints are written by this engine. Leave the section out."},
    {"wandb", R, "switch", "null", "use \"tensorboard\" or \"csv_monitor\"; metrics.jsonl is always written. Set \"enabled\" to false."},
    {"comet", R, "switch", "null", "use \"tensorboard\" or \"csv_monitor\"; metrics.jsonl is always written. Set \"enabled\" to false."},
  }};
}

Section monitor(std::string_view path, std::string_view text) {
  return {path, "", text, true, {
    {"enabled", H, "bool", "false", "Write it."},
    {"output_path", H, "path", "\"\"", "Folder; empty: csv_monitor or tensorboard in the folder of the run (TRIREME_RUN_DIR)."},
    {"job_name", H, "text", "\"DeepSpeedJobName\"", "Name of the sub-folder."},
  }};
}

} // namespace

std::vector<Section> engine_sections() {
  return {
    top_level(),
    {"engine.parameter_averaging", "", "Replicas step alone and average their parameters every few steps: local SGD (Stich 2018, arXiv:1805.09767), SlowMo and DiLoCo. Ours; docs/parameter_averaging.md.", false, {
      {"every", H, "int >= 1", "required", "Parameters are averaged after each step whose number is a multiple of this. In other steps replicas send each other nothing."},
      {"outer_optimizer", H, "word none|slowmo|nesterov", "\"none\"", "Update from the mean. none: the mean is the model; slowmo: slow momentum (Wang et al. 2019, arXiv:1910.00643); nesterov: SGD with Nesterov's momentum, the mean's change as its gradient (DiLoCo, Douillard et al. 2023, arXiv:2311.08105)."},
      {"outer_lr", H, "real > 0", "null", "Outer learning rate: slowmo's alpha, by default 1; nesterov's, by default 0.7."},
      {"outer_momentum", H, "real 0..<1", "null", "Outer momentum: slowmo's beta, by default 0.5; nesterov's, by default 0.9."},
      {"states", H, "word maintain|average|reset", "\"maintain\"", "Optimizer states at an averaging step: each replica keeps its own, all take the mean, or they are reset."},
      {"start_step", H, "int >= 0", "0", "Up to this step gradients are added up in every step, as without the section (post-local SGD, Lin et al. 2020, arXiv:1808.07217)."},
      {"elastic", H, "bool", "false", "Each replica is a process of its own. A lost one only changes the mean; a joining one begins with the mean."},
    }},
    {"engine.gradient_compression", "", "The mean of gradients over the data ranks by compressed messages with error feedback, for any optimizer. Not with ZeRO stage 2 and 3. Ours; docs/compressed_communication.md.", false, {
      {"kind", H, "word sign|eight_bit|top_k|power_sgd", "required", "sign: a bit an element and a scale for at most 2048; eight_bit: a byte and a scale for 256; top_k: the largest elements of each 2048; power_sgd: matrices as products of low rank (Vogels et al. 2019, arXiv:1905.13727)."},
      {"rank", H, "int >= 1", "4", "power_sgd: columns of the two factors of a matrix."},
      {"ratio", H, "real > 0", "0.01", "top_k: the share of the elements that is sent; at most 1."},
      {"start_step", H, "int >= 0", "0", "Up to this step gradients are sent uncompressed."},
    }},
    monitor("engine.csv_monitor", "Metrics as CSV files."),
    monitor("engine.tensorboard", "Metrics as TensorBoard event files."),
    {"engine.checkpoint", "", "Checkpoints. Every one can be read by any number of ranks.", false, {
      {"tag_validation", H, "choice", "\"Warn\"", "Action when ranks save under different tags."},
      {"load_universal", N, "bool", "false", "every checkpoint fits any number of ranks."},
      {"checkpoint_serialization", N, "bool", "true", "tensors are written as safetensors in any case."},
      {"use_node_local_storage", L, "bool|auto", "false", "all ranks write to one folder they share.", R"(["auto"])"},
      {"parallel_write", N, "object", "null", "Who writes."},
      {"writer", L, "object", "null", "files are written by the rank that holds the data, before the next step."},
    }},
    {"engine.checkpoint.tag_validation", "", "Action when ranks save under different tags.", false, {
      {"Ignore", H, "", "", "Rank 0's tag is taken."},
      {"Warn", H, "", "", "Rank 0's tag is taken, with a warning."},
      {"Fail", H, "", "", "Nothing is saved, every rank gets the error."},
    }},
    {"engine.checkpoint.parallel_write", "", "Who writes a checkpoint.", false, {
      {"pipeline_stage", N, "bool", "false", "every rank writes its own part in any case."},
    }},
    {"engine.timers", "", "Timers.", false, {
      {"throughput", N, "object", "null", "The throughput timer."},
    }},
    {"engine.timers.throughput", "", "The throughput timer.", false, {
      {"enabled", N, "bool", "true", "throughput is always measured; it costs two clock reads a step."},
      {"synchronized", N, "bool", "true", "the time of a step is taken after its result is known."},
    }},
  };
}

} // namespace trireme::config
