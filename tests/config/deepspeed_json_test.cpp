#include <trireme/base/error.h>
#include <trireme/config/deepspeed_json.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::config {
namespace {

using optim::OptimizerOptions;
using optim::ScheduleOptions;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

EngineConfig read(const std::string& text) {
  return read_deepspeed(JsonNode::parse(text, "ds.json"));
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

struct Bad {
  const char* text;
  const char* place; // position and path
  const char* what;
  const char* next;
};

void expect_errors(const std::vector<Bad>& all) {
  for (const Bad& bad : all) {
    SCOPED_TRACE(bad.text);
    EXPECT_THAT(error_of(bad.text), AllOf(HasSubstr(std::string("[config] ds.json:") + bad.place), HasSubstr(bad.what),
                                          HasSubstr(bad.next)));
  }
}

TEST(DeepSpeedJsonTest, EmptyConfigHasDeepSpeedsDefaults) {
  const EngineConfig config = read("{}");
  EXPECT_EQ(config.clipping(), 1.0);
  EXPECT_FALSE(config.optimizer.has_value());
  EXPECT_EQ(config.schedule.kind, ScheduleOptions::Kind::constant);
  EXPECT_EQ(config.zero.stage, 0);
  EXPECT_EQ(config.data_parallel.bucket_bytes, 25 << 20);
  EXPECT_EQ(config.data_parallel.first_bucket_bytes, 1 << 20);
  EXPECT_FALSE(config.steps_per_print.has_value());
  EXPECT_EQ(config.csv_monitor.job_name, "DeepSpeedJobName");
  EXPECT_EQ(config.checkpoint.tag_validation, checkpoint::TagValidation::warn);
  EXPECT_THAT(config.notes, IsEmpty());
}

TEST(DeepSpeedJsonTest, ReadsAConfigAsInDeepSpeedsTutorials) {
  const EngineConfig config = read(R"(
// as in the tutorials, with everything that is not built yet switched off
{
  "train_batch_size": 16,
  "train_micro_batch_size_per_gpu": 4,
  "steps_per_print": 2000,
  "optimizer": {
    "type": "Adam",
    "params": {"lr": 0.001, "betas": [0.8, 0.99], "eps": 1e-8, "weight_decay": 3e-7}
  },
  "scheduler": {
    "type": "WarmupLR",
    "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.002, "warmup_num_steps": 500, "warmup_type": "linear"}
  },
  "gradient_clipping": 0.5,
  "prescale_gradients": true,
  "gradient_predivide_factor": 2,
  "gradient_allreduce_op": "sum",
  "communication_data_type": "fp32",
  "bf16": {"enabled": false},
  "fp16": {"enabled": false, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1, "initial_scale_power": 15},
  "amp": {"enabled": false, "opt_level": "O1"},
  "wall_clock_breakdown": true,
  "memory_breakdown": true,
  "dump_state": true,
  "log_level": "warning",
  "dataloader_drop_last": true,
  "zero_optimization": {
    "stage": 0,
    "allgather_partitions": true, "reduce_scatter": true, "allgather_bucket_size": 5e8, "reduce_bucket_size": 1e6,
    "contiguous_gradients": true,
    "offload_optimizer": {"device": "none", "nvme_path": "/local_nvme", "pin_memory": true, "buffer_count": 8, "fast_init": true},
    "offload_param": {"device": "none", "buffer_size": 1e8, "max_in_cpu": 1e9}
  },
  "pipeline": {"stages": 1, "partition": "best", "seed_layers": false},
  "activation_checkpointing": {"partition_activations": false, "cpu_checkpointing": false, "number_checkpoints": null},
  "aio": {"block_size": 1048576, "queue_depth": 8, "single_submit": false, "overlap_events": true},
  "flops_profiler": {"enabled": false, "profile_step": 5, "module_depth": -1, "top_modules": 3, "detailed": true, "output_file": null},
  "comms_logger": {"enabled": false, "verbose": true, "prof_ops": ["all_reduce"]},
  "elasticity": {"enabled": false, "micro_batch_sizes": [8, 12]},
  "curriculum_learning": {"enabled": false, "curriculum_type": "seqlen"},
  "data_efficiency": {"enabled": false, "seed": 7},
  "tensorboard": {"enabled": true, "output_path": "tb", "job_name": "a"},
  "csv_monitor": {"enabled": true, "output_path": "csv", "job_name": "b"},
  "wandb": {"enabled": false, "project": "p"},
  "checkpoint": {"tag_validation": "FAIL", "load_universal": false, "parallel_write": {"pipeline_stage": false}},
  "data_types": {"grad_accum_dtype": "fp32"},
  "_comment": "notes are allowed", "x_mine": [1]
})");
  EXPECT_EQ(config.batch_for(2), (BatchTriple{16, 4, 2}));
  EXPECT_EQ(config.batch.where, "ds.json:4:23");
  EXPECT_EQ(config.steps_per_print, 2000);
  ASSERT_TRUE(config.optimizer.has_value());
  EXPECT_TRUE(std::holds_alternative<optim::AdamOptions>(config.optimizer->rule));
  EXPECT_TRUE(std::get<optim::AdamOptions>(config.optimizer->rule).decoupled_weight_decay) << "Adam means AdamW";
  EXPECT_EQ(std::get<optim::AdamOptions>(config.optimizer->rule).beta1, 0.8);
  EXPECT_EQ(std::get<optim::AdamOptions>(config.optimizer->rule).beta2, 0.99);
  EXPECT_EQ(std::get<optim::AdamOptions>(config.optimizer->rule).weight_decay, 3e-7);
  EXPECT_EQ(config.schedule.kind, ScheduleOptions::Kind::warmup);
  EXPECT_EQ(config.schedule.warmup_max_lr, 0.002);
  EXPECT_EQ(config.schedule.warmup_num_steps, 500);
  EXPECT_EQ(config.schedule.warmup_type, ScheduleOptions::Warmup::linear);
  EXPECT_EQ(config.gradient_clipping, 0.5);
  EXPECT_TRUE(config.data_parallel.prescale_gradients);
  EXPECT_EQ(config.data_parallel.gradient_predivide_factor, 2);
  EXPECT_EQ(config.data_parallel.op, parallel::DataParallelOptions::Op::sum);
  EXPECT_EQ(config.data_parallel.bucket_bytes, 4000000);
  EXPECT_TRUE(config.wall_clock_breakdown && config.memory_breakdown && config.dump_state &&
              config.dataloader_drop_last);
  EXPECT_EQ(config.log_level, "warning");
  EXPECT_TRUE(config.tensorboard.enabled && config.csv_monitor.enabled);
  EXPECT_EQ(config.tensorboard.output_path, "tb");
  EXPECT_EQ(config.csv_monitor.job_name, "b");
  EXPECT_EQ(config.checkpoint.tag_validation, checkpoint::TagValidation::fail);
  EXPECT_THAT(config.notes, IsEmpty());
  EXPECT_EQ(config.source["zero_optimization"]["reduce_bucket_size"], 1e6);
}

TEST(DeepSpeedJsonTest, NotesSayWhatHasNoEffect) {
  EXPECT_THAT(
      read(R"({"disable_allgather": true, "zero_optimization": {"overlap_comm": false}})").notes,
      ElementsAre(AllOf(HasSubstr("ds.json:1:67: zero_optimization.overlap_comm has no effect"),
                        HasSubstr("during the backward pass")),
                  HasSubstr("ds.json:1:23: disable_allgather has no effect: DeepSpeed reads it and never uses it.")));
  EXPECT_THAT(read(R"({"zero_optimization": {"reduce_bucket_size": 5e8}})").notes,
              ElementsAre(AllOf(HasSubstr("zero_optimization.reduce_bucket_size"), HasSubstr("2.00 GB"))));
  EXPECT_THAT(read(R"({"optimizer": {"type": "Adam", "params": {"torch_adam": true}}})").notes,
              ElementsAre(HasSubstr("optimizer.params.torch_adam has no effect")));
}

// clang-format off: a fixture is a line.

const std::string kDeepPattern = R"({"pipeline": {"partition": "type:)" + std::string(50000, '(') + std::string(50000, ')') + R"("}})";

TEST(DeepSpeedJsonTest, MisspeltKeysAreRefusedEverywhere) {
  expect_errors({
      {R"({"gradient_clipp1ng": 1.0})", "1:23: gradient_clipp1ng:", "unknown key", "Did you mean \"gradient_clipping\"?"},
      {R"({"zero_optimisation": {}})", "1:23: zero_optimisation:", "unknown key", "\"zero_optimization\""},
      {R"({"zero_optimization": {"stages": 1}})", "1:34: zero_optimization.stages:", "unknown key", "\"stage\""},
      {"{\"optimizer\":\n {\"type\": \"Adam\", \"params\": {\"learning_rate\": 1}}}", "2:47: optimizer.params.learning_rate:", "unknown key", "Known: lr, betas"},
      {R"({"optimizer": {"type": "Adam", "param": {}}})", "1:41: optimizer.param:", "unknown key", "\"params\""},
      {R"({"optimizer": {"type": "SGD", "params": {"betas": [0.9, 0.99]}}})", "1:51: optimizer.params.betas:", "unknown key", "Known: lr, momentum"},
      {R"({"activation_checkpointing": {"partitioned_activations": true}})", "1:58: activation_checkpointing.partitioned_activations:", "unknown key", "\"partition_activations\""},
      {R"({"fp16": {"enabled": true, "los_scale": 1}})", "1:41: fp16.los_scale:", "unknown key", "\"loss_scale\""},
      {R"({"checkpoint": {"parallel_write": {"pipe_stage": true}}})", "1:50: checkpoint.parallel_write.pipe_stage:", "unknown key", "Known: pipeline_stage."},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"warm_num_steps": 10}}})", "1:65: scheduler.params.warm_num_steps:", "unknown key", "\"warmup_num_steps\""},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 10}}})", "1:66: scheduler.params.total_num_steps:", "unknown key", ""},
      {R"({"train_batch_sise": 8})", "1:22: train_batch_sise:", "unknown key", "\"train_batch_size\""},
  });
}

TEST(DeepSpeedJsonTest, ValuesOfTheWrongKindOrRangeAreRefused) {
  expect_errors({
      {R"([1])", "1:1:", "must be an object, found an array", ""},
      {R"({"activation_checkpointing": {"policy": "Auto"}})", "1:41: activation_checkpointing.policy:", "\"Auto\" is not one of the choices", "\"auto\""},
      {R"({"train_batch_size": "16"})", "1:22: train_batch_size:", "must be a whole number, found a string (\"16\")", ""},
      {R"({"train_batch_size": 1.5})", "1:22: train_batch_size:", "must be a whole number", ""},
      {R"({"train_batch_size": 0})", "1:22: train_batch_size:", "must be a whole number >= 1 or \"auto\", found 0", ""},
      {R"({"gradient_clipping": -1})", "1:23: gradient_clipping:", "must be a number >= 0 or \"auto\", found -1", ""},
      {R"({"gradient_clipping": true})", "1:23: gradient_clipping:", "must be a number, found true or false", ""},
      {R"({"gradient_predivide_factor": 0})", "1:31: gradient_predivide_factor:", "must be a number > 0, found 0", ""},
      {R"({"gradient_allreduce_op": "avg"})", "1:27: gradient_allreduce_op:", "\"avg\" is not one of the choices", "Known: mean, sum."},
      {R"({"log_level": "warn"})", "1:15: log_level:", "not one of the choices", "Known: debug, info, warning, error."},
      {R"({"optimizer": "Adam"})", "1:15: optimizer:", "must be an object, found a string", ""},
      {R"({"wall_clock_breakdown": 1})", "1:26: wall_clock_breakdown:", "must be true or false, found a whole number", ""},
      {R"({"optimizer": {"type": "Adam", "params": {"lr": -1}}})", "1:49: optimizer.params.lr:", "must be a number >= 0", ""},
      {R"({"optimizer": {"type": "Adam", "params": {"lr": "1e-3"}}})", "1:49: optimizer.params.lr:", "found a string (\"1e-3\")", ""},
      {R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 1.0]}}})", "1:58: optimizer.params.betas[1]:", "from 0 to below 1 or \"auto\", found 1.0", ""},
      {R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}})", "1:52: optimizer.params.betas:", "must be two numbers, found 1", "[0.9, 0.999]"},
      {R"({"checkpoint": {"tag_validation": "Wern"}})", "1:35: checkpoint.tag_validation:", "\"Wern\" is not one of the choices", "\"Warn\""},
      {R"({"zero_optimization": {"stage": 4}})", "1:33: zero_optimization.stage:", "must be a whole number from 0 to 3, found 4", ""},
      {R"({"fp16": {"enabled": true, "loss_scale_window": 0}})", "1:49: fp16.loss_scale_window:", "must be a whole number >= 1", ""},
      {R"({"fp16": {"enabled": "yes"}})", "1:22: fp16.enabled:", "must be true or false", ""},
      {R"({"pipeline": {"partition": "nonsense"}})", "1:28: pipeline.partition:", "there is no partition \"nonsense\"", "type:REGEX"},
      {R"({"pipeline": {"partition": "type:("}})", "1:28: pipeline.partition:", "the regular expression is wrong", ""},
      {kDeepPattern.c_str(), "1:28: pipeline.partition:", "more than 1000 characters", ""},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": [0, 0]}}})", "1:64: scheduler.params.warmup_min_lr:", "must be a number, found an array", ""},
  });
}

TEST(DeepSpeedJsonTest, ActivationsThatDoNotGoTogetherAreRefused) {
  expect_errors({
      {R"({"activation_checkpointing": {"policy": "disk"}})", "1:41: activation_checkpointing.policy:", "not one of the choices", "recompute_nvme"},
      {R"({"activation_checkpointing": {"policy": "auto"}})", "1:30: activation_checkpointing:", "needs a memory_budget", "\"memory_budget\": \"2GB\""},
      {R"({"activation_checkpointing": {"memory_budget": "2GB"}})", "1:48: activation_checkpointing.memory_budget:", "has no effect without policy auto", "\"auto\""},
      {R"({"activation_checkpointing": {"policy": "auto", "memory_budget": "2 gigs"}})", "1:66: activation_checkpointing.memory_budget:", "expected a number of bytes, got \"2 gigs\"", "1.5GiB"},
      {R"({"activation_checkpointing": {"policy": "auto", "memory_budget": "0"}})", "1:66: activation_checkpointing.memory_budget:", "expected a number of bytes", ""},
      {R"({"activation_checkpointing": {"policy": "auto", "memory_budget": -5}})", "1:66: activation_checkpointing.memory_budget:", "expected a number of bytes, got -5", "\"2GB\""},
      {R"({"activation_checkpointing": {"policy": "auto", "memory_budget": 1.5}})", "1:66: activation_checkpointing.memory_budget:", "must be a whole number", ""},
      {R"({"activation_checkpointing": {"policy": "nvme"}})", "1:30: activation_checkpointing:", "need an nvme_path", "\"nvme_path\": "},
      {R"({"activation_checkpointing": {"choices": ["keep", "recompute_nvme"]}})", "1:30: activation_checkpointing:", "need an nvme_path", ""},
      {R"({"activation_checkpointing": {"choices": ["keep", "2 * keep"]}})", "1:42: activation_checkpointing.choices:", "\"2 * keep\" is not an activation policy", "4*nvme"},
      {R"({"activation_checkpointing": {"choices": []}})", "1:42: activation_checkpointing.choices:", "is empty", ""},
      {R"({"activation_checkpointing": {"policy": "keep", "choices": ["keep"]}})", "1:60: activation_checkpointing.choices:", "both set the policy", ""},
      {R"({"activation_checkpointing": {"policy": "keep", "layers": "("}})", "1:59: activation_checkpointing.layers:", "the regular expression is wrong", ""},
  });
}

TEST(DeepSpeedJsonTest, ActivationsAreReadAndWritten) {
  using activations::Way;
  const auto read = [](const std::string& section) { return read_deepspeed(JsonNode::parse(R"({"activation_checkpointing": )" + section + "}", "ds.json")); };
  EXPECT_FALSE(read("{}").activations.on());
  EXPECT_FALSE(read(R"({"contiguous_memory_optimization": true, "number_checkpoints": 4})").activations.on());
  EXPECT_TRUE(read(R"({"partition_activations": true})").activations.shares_inputs);
  EXPECT_EQ(to_json(read("{}")).at("activation_checkpointing").at("policy"), nullptr);
  const EngineConfig automatic = read(R"({"policy": "auto", "memory_budget": "1.5GiB", "nvme_path": "/n", "layers": "GptBlock", "profile": true, "cpu_checkpointing": true})");
  EXPECT_TRUE(automatic.activations.automatic);
  EXPECT_FALSE(automatic.activations.policy);
  EXPECT_EQ(automatic.activations.memory_budget, int64_t{3} << 29);
  EXPECT_TRUE(automatic.activations.uses_nvme());
  EXPECT_TRUE(automatic.activations.inputs_to_host);
  EXPECT_EQ(read(R"({"policy": "auto", "memory_budget": "800 mb"})").activations.memory_budget, 800'000'000);
  EXPECT_EQ(read(R"({"policy": "auto", "memory_budget": 2000000})").activations.memory_budget, 2'000'000);
  EXPECT_EQ(read(R"({"policy": "auto", "memory_budget": 2e9})").activations.memory_budget, 2'000'000'000);
  const EngineConfig listed = read(R"({"choices": ["2*recompute", "host"]})");
  EXPECT_EQ(listed.activations.choices, (std::vector<Way>{Way::recompute, Way::recompute, Way::host}));
  for (const EngineConfig& config : {automatic, listed, read(R"({"policy": "recompute_host", "partition_activations": true})")}) {
    const nlohmann::ordered_json written = to_json(config).at("activation_checkpointing");
    EXPECT_EQ(to_json(read(written.dump())).at("activation_checkpointing"), written);
  }
}

TEST(DeepSpeedJsonTest, WhatIsNotBuiltSaysNotYet) {
  expect_errors({
      {R"({"sparse_attention": {"mode": "fixed"}})", "1:22: sparse_attention:", "not yet: attention is dense", "Leave it out."},
      {R"({"flops_profiler": {"enabled": true}})", "1:32: flops_profiler.enabled:", "not yet: ", "wall_clock_breakdown"},
      {R"({"tensor_parallel": {"preset_model": "llama"}})", "1:38: tensor_parallel.preset_model:", "not yet: ", "partition_config"},
      {R"({"elasticity": {"enabled": true}})", "1:28: elasticity.enabled:", "not yet: ", "train_batch_size"},
      {R"({"curriculum_learning": {"enabled": true}})", "1:25: curriculum_learning:", "not yet: ", ""},
      {R"({"sparse_gradients": true})", "1:22: sparse_gradients:", "not yet: ", "write false"},
      {R"({"checkpoint": {"writer": {"type": "fast"}}})", "1:27: checkpoint.writer:", "not yet: ", ""},
  });
}

TEST(DeepSpeedJsonTest, WhatIsOutsideSaysWhatToDoInstead) {
  expect_errors({
      {R"({"amp": {"enabled": true}})", "1:21: amp.enabled:", "not supported: apex is a Python package", "fp16"},
      {R"({"bfloat16": {"enabled": true}, "bf16": {"enabled": true}})", "1:26: bfloat16.enabled:", "another name of bf16, which is enabled as well, at ds.json:1:53", "Keep one"},
      {R"({"zero_optimization": true})", "1:23: zero_optimization:", "long deprecated", R"({"stage": 0})"},
      {R"({"zero_optimization": {"cpu_offload": true}})", "1:39: zero_optimization.cpu_offload:", "not supported: ", R"("offload_optimizer": {"device": "cpu"})"},
      {R"({"zero_optimization": {"cpu_offload_param": true}})", "1:45: zero_optimization.cpu_offload_param:", "not supported: ", "offload_param"},
      {R"({"zero_optimization": {"stage3_gather_fp16_weights_on_model_save": true}})", "1:68: zero_optimization.stage3_gather_fp16", "not supported: ", "stage3_gather_16bit_weights_on_model_save"},
      {R"({"zero_optimization": {"zero_quantized_weights": true}})", "1:50: zero_optimization.zero_quantized_weights:", "ZeRO++", "Leave it out"},
      {R"({"zero_optimization": {"offload_optimizer": {"device": "none", "super_offload": true}, "mics_hierarchical_params_gather": true}})", "1:123: zero_optimization.mics_hierarchical_params_gather:", "mics_shard_size", ""},
      {R"({"zero_optimization": {"mics_shard_size": 2}})", "1:43: zero_optimization.mics_shard_size:", "nothing is sharded", "stage from 1 to 3"},
      {R"({"zero_optimization": {"stage": 1, "mics_shard_size": 1}})", "1:55: zero_optimization.mics_shard_size:", "at least 2", "stage"},
      {R"({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}})", "1:63: zero_optimization.zero_hpz_partition_size:", "ZeRO++", "Leave it out"},
      {R"({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}})", "1:60: optimizer.params.max_grad_norm:", "not supported: ", "\"gradient_clipping\""},
      {R"({"optimizer": {"type": "OneBitAdam", "params": {"amsgrad": true}}})", "1:60: optimizer.params.amsgrad:", "not supported: ", ""},
      {R"({"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 0}}})", "1:64: optimizer.params.freeze_step:", "must be a whole number >= 1", ""},
      {R"({"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": "often"}}})", "1:64: optimizer.params.freeze_step:", "must be a whole number", ""},
      {R"({"optimizer": {"type": "OneBitLamb", "params": {"factor_min": 1.5}}})", "1:63: optimizer.params.factor_min:", "1.5 is more than 1", ""},
      {R"({"optimizer": {"type": "OneBitLamb", "params": {"coeff_beta": 1}}})", "1:63: optimizer.params.coeff_beta:", "must be", ""},
      {R"({"optimizer": {"type": "ZeroOneAdam", "params": {"local_step_clipper": 0}}})", "1:72: optimizer.params.local_step_clipper:", "must be a whole number >= 1", ""},
      {R"({"optimizer": {"type": "ZeroOneAdam", "params": {"freeze_step": 9}}})", "1:65: optimizer.params.freeze_step:", "unknown key", "var_freeze_step"},
      {R"({"gradient_compression": {"kind": "zip"}})", "1:35: gradient_compression.kind:", "", "power_sgd"},
      {R"({"gradient_compression": {"kind": "sign", "rank": 2}})", "1:51: gradient_compression.rank:", "is of power_sgd, and the kind is sign", "Leave it out"},
      {R"({"gradient_compression": {"kind": "top_k", "ratio": 1.5}})", "1:53: gradient_compression.ratio:", "more than all elements", "from above 0 to 1"},
      {R"({"optimizer": {"type": "Adam", "params": {"amsgrad": true}}})", "1:54: optimizer.params.amsgrad:", "not supported: ", ""},
      {R"({"optimizer": {"type": "Muon"}})", "1:24: optimizer.type:", "not supported: Muon", "AdamW"},
      {R"({"optimizer": {"type": "Adem"}})", "1:24: optimizer.type:", "not one of the choices", "Did you mean \"Adam\"?"},
      {R"({"optimizer": {"type": "NovoGrad"}})", "1:24: optimizer.type:", "not one of the choices", "Known: Adam, AdamW, SGD, Lamb, FusedLamb, Lion, Adagrad, RMSprop, OneBitAdam, OneBitLamb, ZeroOneAdam."},
      {R"({"scheduler": {"type": "StepLR"}})", "1:24: scheduler.type:", "not one of the choices", "Known: WarmupLR"},
      {R"({"fp32_allreduce": true})", "1:20: fp32_allreduce:", "not supported: ", "communication_data_type"},
      {R"({"wandb": {"enabled": true}})", "1:11: wandb:", "not supported: ", "tensorboard"},
      {R"({"autotuning": {"enabled": true}})", "1:16: autotuning:", "not supported: ", "trireme plan"},
      {R"({"compression_training": {"weight_quantization": {}}})", "1:26: compression_training:", "not supported: ", ""},
      {R"({"aio": {"thread_count": 4}})", "1:26: aio.thread_count:", "not supported: ", "intra_op_parallelism"},
      {R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})", "1:22: bf16.enabled:", "fp16 is enabled as well, at ds.json:1:49", "Enable one"},
      {R"({"steps_per_print": "auto"})", "1:21: steps_per_print:", "Hugging Face", "Write a whole number >= 1, or leave the key out."},
      {R"({"gradient_predivide_factor": "auto"})", "1:31: gradient_predivide_factor:", "Hugging Face", ""},
      {R"({"zero_optimization": {"stage": "auto"}})", "1:33: zero_optimization.stage:", "Hugging Face", ""},
      {R"({"torch_autocast": {"enabled": "auto"}})", "1:32: torch_autocast.enabled:", "Hugging Face", ""},
      {R"({"optimizer": {"type": "Adam", "params": {"bias_correction": "auto"}}})", "1:62: optimizer.params.bias_correction:", "Hugging Face", ""},
      {R"({"compile": {"deepcompile": true}})", "1:13: compile:", "not supported: ", "Leave the section out"},
  });
}

TEST(DeepSpeedJsonTest, SettingsThatContradictEachOther) {
  expect_errors({
      {R"({"optimizer": {"params": {}}})", "1:15: optimizer:", "the key \"type\" is missing", ""},
      {R"({"optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}})", "1:59: optimizer.params.adam_w_mode:", "ds.json:1:24 asks for AdamW", "\"type\": \"Adam\""},
      {R"({"optimizer": {"type": "Lamb", "params": {"max_coeff": 0.5, "min_coeff": 1}}})", "1:74: optimizer.params.min_coeff:", "more than max_coeff", ""},
      {R"({"optimizer": {"type": "Lion", "params": {"betas": [0.9]}}})", "1:52: optimizer.params.betas:", "must be two numbers", ""},
      {R"({"optimizer": {"type": "Lamb", "params": {"state_dtype": "int8"}}})", "1:58: optimizer.params.state_dtype:", "", ""},
      {R"({"optimizer": {"type": "Adam", "params": {"state_dtype": "int8", "fp32_optimizer_states": true}}})",
       "1:91: optimizer.params.fp32_optimizer_states:", "contradicts", ""},
      {R"({"optimizer": {"type": "SGD", "params": {"nesterov": true}}})", "1:54: optimizer.params.nesterov:", "needs momentum > 0", ""},
      {R"({"scheduler": {"type": "WarmupDecayLR"}})", "1:15: scheduler:", "WarmupDecayLR needs \"params\": {\"total_num_steps\"", ""},
      {R"({"scheduler": {"type": "WarmupCosineLR", "params": {"cos_min_ratio": 0}}})", "1:52: scheduler.params:", "\"total_num_steps\" is missing", ""},
      {R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1}}})", "1:46: scheduler.params:", "\"cycle_max_lr\" is missing", ""},
      {R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.01}}})", "1:63: scheduler.params.cycle_min_lr:", "is more than cycle_max_lr, 0.01, at ds.json:1:84", ""},
      {R"({"scheduler": {"params": {}}})", "1:15: scheduler:", "the key \"type\" is missing", ""},
  });
}

// clang-format on

TEST(DeepSpeedJsonTest, AdamModes) {
  const auto adam = [](const char* text) { return std::get<optim::AdamOptions>(read(text).optimizer->rule); };
  EXPECT_TRUE(adam(R"({"optimizer": {"type": "adamw"}})").decoupled_weight_decay);
  EXPECT_TRUE(adam(R"({"optimizer": {"type": "ADAM"}})").decoupled_weight_decay);
  EXPECT_FALSE(adam(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})").decoupled_weight_decay);
  EXPECT_FALSE(adam(R"({"optimizer": {"type": "Adam", "params": {"bias_correction": false}}})").bias_correction);
  EXPECT_EQ(adam(R"({"optimizer": {"type": "Adam", "params": null}})").lr, 1e-3);
}

TEST(DeepSpeedJsonTest, OptimizersWithTheirDefaults) {
  const auto optimizer = [](const std::string& section) {
    return *read(concat(R"({"optimizer": )", section, "}")).optimizer;
  };
  auto o = optimizer(R"({"type": "lamb"})");
  EXPECT_TRUE(std::holds_alternative<optim::LambOptions>(o.rule));
  EXPECT_EQ(std::get<optim::LambOptions>(o.rule).max_coeff, 10);
  EXPECT_EQ(std::get<optim::LambOptions>(o.rule).min_coeff, 0.01);
  EXPECT_EQ(o.lr(), 1e-3);
  o = optimizer(R"({"type": "Lion", "params": {"betas": [0.95, 0.98], "weight_decay": 0.3, "state_dtype": "int8"}})");
  EXPECT_EQ(std::get<optim::LionOptions>(o.rule).beta2, 0.98);
  EXPECT_EQ(o.weight_decay(), 0.3);
  EXPECT_EQ(o.state_type, optim::StateType::int8);
  EXPECT_EQ(o.weight_decay_of(1), 0.3) << "biases decay, as in PyTorch";
  o = optimizer(R"({"type": "Adam", "params": {"weight_decay": 0.3, "weight_decay_rule": "matrices"}})");
  EXPECT_EQ(o.weight_decay_of(1), 0);
  EXPECT_EQ(o.weight_decay_of(2), 0.3);
  o = optimizer(R"({"type": "Adagrad"})");
  EXPECT_EQ(o.lr(), 1e-2);
  EXPECT_EQ(std::get<optim::AdagradOptions>(o.rule).eps, 1e-10);
  o = optimizer(R"({"type": "RMSprop", "params": {"lr": 0.1, "alpha": 0.9, "momentum": 0.8, "centered": true}})");
  EXPECT_EQ(std::get<optim::RmspropOptions>(o.rule).alpha, 0.9);
  EXPECT_EQ(std::get<optim::RmspropOptions>(o.rule).momentum, 0.8);
  EXPECT_TRUE(std::get<optim::RmspropOptions>(o.rule).centered);
  EXPECT_EQ(optimizer(R"({"type": "Adam", "params": {"fp32_optimizer_states": false}})").state_type,
            optim::StateType::bf16);
  o = optimizer(R"({"type": "OneBitAdam", "params": {"comm_backend_name": "mpi", "cuda_aware": true}})");
  EXPECT_EQ(std::get<optim::OneBitAdamOptions>(o.rule).freeze_step, 100000);
  EXPECT_TRUE(std::get<optim::OneBitAdamOptions>(o.rule).bias_correction);
  EXPECT_EQ(o.lr(), 1e-3);
  o = optimizer(
      R"({"type": "onebitadam", "params": {"freeze_step": 23, "betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0.3, "bias_correction": false}})");
  EXPECT_EQ(std::get<optim::OneBitAdamOptions>(o.rule).freeze_step, 23);
  EXPECT_EQ(std::get<optim::OneBitAdamOptions>(o.rule).beta2, 0.99);
  EXPECT_EQ(std::get<optim::OneBitAdamOptions>(o.rule).eps, 1e-6);
  EXPECT_FALSE(std::get<optim::OneBitAdamOptions>(o.rule).bias_correction);
  EXPECT_EQ(o.weight_decay(), 0.3);
  o = optimizer(R"({"type": "OneBitLamb"})");
  const auto lamb = std::get<optim::OneBitLambOptions>(o.rule);
  EXPECT_EQ(std::tuple(lamb.freeze_step, lamb.max_coeff, lamb.min_coeff, lamb.coeff_beta, lamb.factor_max,
                       lamb.factor_min, lamb.factor_threshold, lamb.eps_inside_sqrt),
            std::tuple(100000, 10, 0.01, 0.9, 4, 0.5, 0.1, false));
  o = optimizer(
      R"({"type": "OneBitLamb", "params": {"freeze_step": "auto", "max_coeff": 0.3, "coeff_beta": 0.5, "factor_max": 2, "factor_threshold": 0.2}})");
  EXPECT_EQ(std::get<optim::OneBitLambOptions>(o.rule).freeze_step, std::nullopt);
  EXPECT_EQ(std::get<optim::OneBitLambOptions>(o.rule).max_coeff, 0.3);
  EXPECT_EQ(std::get<optim::OneBitLambOptions>(o.rule).coeff_beta, 0.5);
  EXPECT_EQ(std::get<optim::OneBitLambOptions>(o.rule).factor_max, 2);
  EXPECT_EQ(std::get<optim::OneBitLambOptions>(o.rule).factor_threshold, 0.2);
  o = optimizer(R"({"type": "ZeroOneAdam", "params": {"cuda_aware": false}})");
  const auto zero_one = std::get<optim::ZeroOneAdamOptions>(o.rule);
  EXPECT_EQ(std::tuple(zero_one.var_freeze_step, zero_one.var_update_scaler, zero_one.local_step_scaler,
                       zero_one.local_step_clipper, zero_one.lr),
            std::tuple(100000, 16, 32678, 16, 1e-3));
  o = optimizer(R"({"type": "OneBitAdam", "params": {"freeze_step": "auto"}})");
  EXPECT_EQ(std::get<optim::OneBitAdamOptions>(o.rule).freeze_step, std::nullopt);
}

TEST(DeepSpeedJsonTest, GradientCompression) {
  using Kind = compress::GradientCompressionOptions::Kind;
  EXPECT_FALSE(read(R"({"train_batch_size": 8})").compression.on());
  const auto power =
      read(R"({"train_batch_size": 8, "gradient_compression": {"kind": "power_sgd", "rank": 2, "start_step": 10}})")
          .compression;
  EXPECT_EQ(std::tuple(power.kind, power.rank, power.start_step), std::tuple(Kind::power_sgd, 2, 10));
  EXPECT_EQ(read(R"({"train_batch_size": 8, "gradient_compression": {"kind": "power_sgd"}})").compression.rank, 4);
  const auto largest = read(R"({"train_batch_size": 8, "gradient_compression": {"kind": "top_k"}})").compression;
  EXPECT_EQ(std::tuple(largest.kind, largest.ratio, largest.start_step), std::tuple(Kind::top_k, 0.01, 0));
  EXPECT_EQ(read(R"({"train_batch_size": 8, "gradient_compression": {"kind": "sign"}})").compression.kind, Kind::sign);
  EXPECT_EQ(read(R"({"train_batch_size": 8, "gradient_compression": {"kind": "eight_bit"}})").compression.kind,
            Kind::eight_bit);
}

TEST(DeepSpeedJsonTest, Sgd) {
  const auto config = read(
      R"({"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": true, "weight_decay": 1e-4}}})");
  EXPECT_TRUE(std::holds_alternative<optim::SgdOptions>(config.optimizer->rule));
  EXPECT_EQ(config.optimizer->lr(), 0.1);
  EXPECT_EQ(std::get<optim::SgdOptions>(config.optimizer->rule).momentum, 0.9);
  EXPECT_TRUE(std::get<optim::SgdOptions>(config.optimizer->rule).nesterov);
  EXPECT_EQ(config.optimizer->weight_decay(), 1e-4);
}

TEST(DeepSpeedJsonTest, SchedulesAndTheirDefaults) {
  const auto schedule = [](const std::string& type, const std::string& params) {
    return read(R"({"scheduler": {"type": ")" + type + R"(", "params": )" + params + "}}").schedule;
  };
  const auto warmup = schedule("WarmupLR", "{}");
  EXPECT_EQ(warmup.warmup_max_lr, std::nullopt);
  EXPECT_EQ(warmup.warmup_num_steps, 1000);
  EXPECT_EQ(warmup.warmup_type, ScheduleOptions::Warmup::log);
  const auto decay = schedule("WarmupDecayLR", R"({"total_num_steps": 5000})");
  EXPECT_EQ(decay.kind, ScheduleOptions::Kind::warmup_decay);
  EXPECT_EQ(decay.total_num_steps, 5000);
  EXPECT_EQ(decay.warmup_max_lr, 0.001);
  const auto cosine = schedule("WarmupCosineLR", R"({"total_num_steps": 5000, "warmup_min_ratio": 0.1})");
  EXPECT_EQ(cosine.kind, ScheduleOptions::Kind::warmup_cosine);
  EXPECT_EQ(cosine.warmup_min_ratio, 0.1);
  EXPECT_EQ(cosine.cos_min_ratio, 1e-4);
  const auto cycle = schedule("onecycle", R"({"cycle_min_lr": 0.1, "cycle_max_lr": 1, "cycle_second_step_size": 30})");
  EXPECT_EQ(cycle.kind, ScheduleOptions::Kind::one_cycle);
  EXPECT_EQ(cycle.cycle_second_step_size, 30);
  EXPECT_EQ(cycle.cycle_second_stair_count, std::nullopt);
  EXPECT_EQ(cycle.cycle_max_mom, 0.9);
  const auto range = schedule("LRRangeTest", R"({"lr_range_test_staircase": true})");
  EXPECT_EQ(range.kind, ScheduleOptions::Kind::lr_range_test);
  EXPECT_EQ(range.lr_range_test_min_lr, 1e-3);
  EXPECT_TRUE(range.lr_range_test_staircase);
}

TEST(DeepSpeedJsonTest, ScheduleNotes) {
  EXPECT_THAT(
      read(
          R"({"optimizer": {"type": "Adam", "params": {"lr": 3e-4}}, "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5000}}})")
          .notes,
      ElementsAre(AllOf(HasSubstr("rises to 0.001"), HasSubstr("0.0003"), HasSubstr("warmup_max_lr"))));
  EXPECT_THAT(read(R"({"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 500}}})").notes,
              ElementsAre(AllOf(HasSubstr("ds.json:1:72: scheduler.params.total_num_steps"), HasSubstr("step 1000"))));
}

TEST(DeepSpeedJsonTest, WhatWasUnderstoodReadsBackTheSame) {
  for (
      const char* text :
      {"{}", R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"adam_w_mode": false, "lr": 0.1}}})",
       R"({"optimizer": {"type": "SGD"}, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1}}})",
       R"({"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 2000}}, "checkpoint": {"tag_validation": "ignore"}})"}) {
    const auto once = to_json(read(text));
    EXPECT_EQ(to_json(read(once.dump())), once);
  }
}

} // namespace
} // namespace trireme::config
