// Every key of "engine" that the table calls honoured does something: two values, and what an engine does or holds
// differs.
#include "engine_observers.h"

#include <tests/support/key_observers.h>
#include <trireme/engine/sync_kinds.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <algorithm>
#include <cstdlib>

namespace trireme::engine {
namespace {

using nlohmann::json;
using test::KeyObserver;
using testing::HasSubstr;
using testing::IsEmpty;

json parsed(const char* text) {
  return json::parse(text);
}

const json kCommon =
    parsed(R"({"engine": {"train_batch_size": 12, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}})");

json engine(const char* text) {
  return {{"engine", parsed(text)}};
}

// The files that a run of two steps leaves in a folder of its own.
json files(comm::World& world, const json& run) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_monitors_", ::getpid());
  fs::remove_all(folder);
  json here = run;
  for (const char* monitor : {"csv_monitor", "tensorboard"}) {
    if (here["engine"].contains(monitor) && here["engine"][monitor].contains("output_path")) {
      here["engine"][monitor]["output_path"] =
          (folder / here["engine"][monitor]["output_path"].get<std::string>()).string();
    }
  }
  ::setenv("TRIREME_RUN_DIR", (folder / "run").c_str(), 1);
  const json trained = observe::batches(world, here);
  ::unsetenv("TRIREME_RUN_DIR");
  json seen = json::array();
  if (fs::exists(folder)) {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_directory()) { // TensorBoard's files have the time in their names
        seen.push_back(fs::relative(entry.path(), folder).string());
      }
    }
  }
  std::sort(seen.begin(), seen.end());
  fs::remove_all(folder);
  return seen;
}

std::vector<KeyObserver> top_level() {
  const std::string_view at = "engine";
  const json report = engine(R"({"steps_per_print": 1})");
  return {
      {at, "", "train_batch_size", 12, 24, observe::batches},
      {at, "", "train_micro_batch_size_per_gpu", 12, 4, observe::batches},
      {at, "", "gradient_accumulation_steps", 1, 3, observe::batches},
      {at, "", "gradient_clipping", 1.0, 0.001, observe::training},
      {at, "", "steps_per_print", nullptr, 1, observe::log_lines},
      {at, "", "wall_clock_breakdown", false, true, observe::log_lines, report},
      {at, "", "memory_breakdown", false, true, observe::log_lines, report},
      {at, "", "dump_state", false, true, observe::log_lines},
      {at, "", "log_level", "info", "error", observe::log_lines},
      {at, "", "prescale_gradients", false, true, observe::training, {}, 3},
      {at, "", "gradient_predivide_factor", 1.0, 3.0, observe::training, {}, 3},
      {at, "", "gradient_allreduce_op", "mean", "sum", observe::training, {}, 2},
      {at, "", "gradient_allreduce_algorithm", "backend", "ring", observe::operations, {}, 2},
      {at, "", "dataloader_drop_last", false, true, observe::batches, engine(R"({"train_batch_size": 100})")},
      {at, "", "communication_data_type", nullptr, "bf16", observe::operations, {}, 2},
      {at, "", "broadcast_buffers", true, false, observe::equal_module_buffers, {}, 2},
      {at, "", "sync_batch_norm", false, true, observe::loss_with_norm, {}, 2},
      {at, "", "step_in_backward", false, true, observe::steps_in_backward, engine(R"({"gradient_clipping": 0})")},
      {"engine.csv_monitor", "", "enabled", false, true, files},
      {"engine.csv_monitor", "", "output_path", "a", "b", files, engine(R"({"csv_monitor": {"enabled": true}})")},
      {"engine.csv_monitor", "", "job_name", "a", "b", files, engine(R"({"csv_monitor": {"enabled": true}})")},
      {"engine.tensorboard", "", "enabled", false, true, files},
      {"engine.tensorboard", "", "output_path", "a", "b", files, engine(R"({"tensorboard": {"enabled": true}})")},
      {"engine.tensorboard", "", "job_name", "a", "b", files, engine(R"({"tensorboard": {"enabled": true}})")},
      {"engine.checkpoint", "", "tag_validation", "Ignore", "Fail", observe::differing_tags, {}, 2},
  };
}

std::vector<KeyObserver> zero_and_pipeline() {
  const json sharded =
      engine(R"({"gradient_clipping": 0, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}})");
  const json accumulated = engine(
      R"({"gradient_clipping": 0, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}})");
  const json whole = engine(R"({"gradient_clipping": 0, "zero_optimization": {"stage": 3}})");
  const std::string_view zero = "engine.zero_optimization";
  const std::string_view pipeline = "engine.pipeline";
  return {
      {zero, "", "stage", 0, 1, observe::state_bytes, {}, 2},
      {zero, "", "mics_shard_size", -1, 2, observe::state_bytes, engine(R"({"zero_optimization": {"stage": 1}})"), 4},
      {zero, "", "reduce_bucket_size", nullptr, 500, observe::operations, {}, 2},
      {zero, "", "stage3_prefetch_bucket_size", nullptr, 0, observe::operations, sharded, 2},
      {zero, "", "prefetch_bucket_size", nullptr, 0, observe::operations, sharded, 2},
      {zero, "", "stage3_max_live_parameters", nullptr, 1'000'000, observe::operations, accumulated, 2},
      {zero, "", "max_live_parameters", nullptr, 1'000'000, observe::operations, accumulated, 2},
      {zero, "", "stage3_param_persistence_threshold", 0, 100'000, observe::operations, whole, 2},
      {zero, "", "param_persistence_threshold", 0, 100'000, observe::operations, whole, 2},
      {zero, "", "stage3_model_persistence_threshold", 0, 100'000, observe::operations, whole, 2},
      {pipeline, "", "stages", "auto", 2, observe::layers, {}, 2},
      {pipeline, "", "partition", "parameters", "uniform", observe::layers, engine(R"({"pipeline": {"stages": 2}})"),
       2},
      {pipeline, "", "seed_layers", false, true, observe::layers},
      {pipeline, "", "activation_checkpoint_interval", 0, 2, observe::layers},
  };
}

// A training of ranks of one world, who do not say which replicas they are, or why it is refused.
json of_one_world(comm::World& world, const json& run) {
  try {
    return observe::training(world, run);
  } catch (const InputError& error) {
    return error.what();
  }
}

std::vector<KeyObserver> averaging() {
  const std::string_view at = "engine.parameter_averaging";
  const auto section = [](const char* text) { return json{{"engine", {{"parameter_averaging", parsed(text)}}}}; };
  const json nesterov = section(R"({"every": 2, "outer_optimizer": "nesterov"})");
  return {
      {at, "", "every", 2, 3, observe::training, {}, 2},
      {at, "", "outer_optimizer", "none", "nesterov", observe::training, section(R"({"every": 2})"), 2},
      {at, "", "outer_lr", 0.7, 0.6, observe::training, nesterov, 2},
      {at, "", "outer_momentum", 0.9, 0.8, observe::training, nesterov, 2},
      {at, "", "start_step", 0, 3, observe::training, section(R"({"every": 2})"), 2},
      {at, "", "states", "maintain", "reset", observe::training, section(R"({"every": 2})"), 2},
      {at, "", "elastic", false, true, of_one_world, section(R"({"every": 2})"), 2},
  };
}

std::vector<KeyObserver> activation_checkpointing() {
  const std::string_view at = "engine.activation_checkpointing";
  const auto section = [](const char* text) { return json{{"engine", {{"activation_checkpointing", parsed(text)}}}}; };
  return {
      {at, "", "policy", "keep", "recompute", observe::activations},
      {at, "", "memory_budget", "150KB", "1GB", observe::activations, section(R"({"policy": "auto"})")},
      {at, "", "choices", parsed(R"(["2*keep"])"), parsed(R"(["keep", "recompute"])"), observe::activations},
      {at, "", "layers", "Gpt", "Bert", observe::activations, section(R"({"policy": "recompute"})")},
      {at, "", "nvme_path", "one", "other", observe::activations, section(R"({"policy": "nvme"})")},
      {at, "", "cpu_checkpointing", false, true, observe::log_lines},
      {at, "", "partition_activations", false, true,
       observe::log_lines}, // what it does among tensor ranks: split_activations_test.cpp
      {at, "", "profile", false, true, observe::log_lines},
  };
}

std::vector<KeyObserver> compression() {
  const std::string_view at = "engine.gradient_compression";
  const auto section = [](const char* text) { return json{{"engine", {{"gradient_compression", parsed(text)}}}}; };
  return {
      {at, "", "kind", "sign", "eight_bit", observe::training, {}, 2},
      {at, "", "rank", 4, 1, observe::training, section(R"({"kind": "power_sgd"})"), 2},
      {at, "", "ratio", 0.01, 0.5, observe::training, section(R"({"kind": "top_k"})"), 2},
      {at, "", "start_step", 0, 3, observe::training, section(R"({"kind": "sign"})"), 2},
  };
}

std::vector<KeyObserver> precision() {
  const json fp16 = engine(R"({"fp16": {"enabled": true, "initial_scale_power": 4}})");
  const json one_overflow = engine(R"({"fp16": {"enabled": true, "initial_scale_power": 4, "hysteresis": 1}})");
  const json bf16 = engine(R"({"bf16": {"enabled": true}})");
  const json fp8 = engine(R"({"bf16": {"enabled": true}, "fp8": {"enabled": true}})");
  const json unclipped = engine(R"({"bf16": {"enabled": true}, "gradient_clipping": 0})");
  return {
      {"engine.fp16", "", "enabled", false, true, observe::training},
      {"engine.fp16", "", "auto_cast", false, true, observe::input_type, fp16},
      {"engine.fp16", "", "loss_scale", 0, 128, observe::loss_scales, fp16},
      {"engine.fp16", "", "initial_scale_power", 4, 8, observe::loss_scales, fp16},
      {"engine.fp16", "", "loss_scale_window", 1000, 1, observe::loss_scales, fp16},
      {"engine.fp16", "", "hysteresis", 2, 1, observe::loss_scales, fp16},
      {"engine.fp16", "", "consecutive_hysteresis", false, true, observe::loss_scales, fp16},
      {"engine.fp16", "", "min_loss_scale", 1, 8, observe::loss_scales, one_overflow},
      {"engine.bf16", "", "enabled", false, true, observe::training},
      {"engine.bf16", "", "check_grad_overflow", true, false, observe::skips_nan_gradients, unclipped},
      {"engine.bf16", "", "bf16_optimizer_states", false, true, observe::training, bf16},
      {"engine.bfloat16", "", "enabled", false, true, observe::training},
      {"engine.bfloat16", "", "check_grad_overflow", true, false, observe::skips_nan_gradients,
       engine(R"({"bfloat16": {"enabled": true}, "gradient_clipping": 0})")},
      {"engine.bfloat16", "", "bf16_optimizer_states", false, true, observe::training,
       engine(R"({"bfloat16": {"enabled": true}})")},
      {"engine.torch_autocast", "", "enabled", false, true, observe::training},
      {"engine.torch_autocast", "", "dtype", "bfloat16", "float16", observe::training,
       engine(R"({"torch_autocast": {"enabled": true}})")},
      {"engine.fp8", "", "enabled", false, true, observe::training, bf16},
      {"engine.fp8", "", "recipe", "tensorwise", "rowwise", observe::training, fp8},
      {"engine.fp8", "", "round_scales_to_power_of_2", true, false, observe::training, fp8},
      {"engine.fp8", "", "filter_fqns", {"lm_head"}, {"c_attn"}, observe::training, fp8},
      {"engine.data_types", "", "grad_accum_dtype", "fp32", "bf16", observe::training,
       engine(R"({"bf16": {"enabled": true}, "gradient_accumulation_steps": 3})")},
  };
}

std::vector<KeyObserver> optimizers() {
  std::vector<KeyObserver> all = {{"engine.optimizer", "", "type", "AdamW", "SGD", observe::training}};
  const json zero_one = engine(R"({"optimizer": {"type": "ZeroOneAdam", "params": {}}})");
  const json frozen_zero_one = engine(
      R"({"optimizer": {"type": "ZeroOneAdam", "params": {"var_freeze_step": 1, "var_update_scaler": 1, "local_step_scaler": 1}}})");
  const auto add = [&](std::string_view when, std::string_view key, const json& one, const json& other,
                       const char* params = "{}") {
    all.push_back({"engine.optimizer.params",
                   when,
                   key,
                   one,
                   other,
                   observe::training,
                   {{"engine", {{"optimizer", {{"params", parsed(params)}}}}}}});
  };
  for (const char* when : {"Adam AdamW", "OneBitAdam", "OneBitLamb", "ZeroOneAdam", "SGD", "Lamb FusedLamb", "Lion",
                           "Adagrad", "RMSprop"}) {
    add(when, "lr", 0.01, 0.02);
    add(when, "weight_decay", 0, 0.5);
    add(when, "weight_decay_rule", "all", "matrices", R"({"weight_decay": 0.5})");
    if (const std::string_view name = when; name == "OneBitAdam" || name == "OneBitLamb" || name == "ZeroOneAdam") {
      continue;
    }
    add(when, "state_dtype", "fp32", "bf16", std::string_view(when) == "SGD" ? R"({"momentum": 0.9})" : "{}");
  }
  for (const char* when : {"Adam AdamW", "OneBitAdam", "OneBitLamb", "ZeroOneAdam", "Lamb FusedLamb", "Lion"}) {
    add(when, "betas", {0.9, 0.99}, {0.5, 0.6});
  }
  for (const char* when :
       {"Adam AdamW", "OneBitAdam", "OneBitLamb", "ZeroOneAdam", "Lamb FusedLamb", "Adagrad", "RMSprop"}) {
    add(when, "eps", 1e-8, 0.1);
  }
  for (const char* when : {"Adam AdamW", "OneBitAdam", "OneBitLamb", "ZeroOneAdam", "Lamb FusedLamb"}) {
    add(when, "bias_correction", true, false);
  }
  add("OneBitAdam", "freeze_step", 100000, 2);
  add("OneBitLamb", "freeze_step", 100000, 2);
  for (const char* when : {"Lamb FusedLamb", "OneBitLamb"}) {
    add(when, "max_coeff", 10, 0.02);
    add(when, "min_coeff", 0.01, 5);
    add(when, "eps_inside_sqrt", false, true, R"({"eps": 0.001})");
  }
  add("OneBitLamb", "coeff_beta", 0.9, 0.1, R"({"freeze_step": 2})");
  add("OneBitLamb", "factor_max", 4, 1, R"({"freeze_step": 1})");
  add("OneBitLamb", "factor_min", 0.5, 1, R"({"freeze_step": 2, "factor_threshold": 0.9})");
  add("OneBitLamb", "factor_threshold", 0.1, 0.01, R"({"freeze_step": 1})");
  add("ZeroOneAdam", "var_update_scaler", 16, 1);
  all.push_back(
      {"engine.optimizer.params", "ZeroOneAdam", "var_freeze_step", 100000, 2, observe::training, zero_one, 2});
  all.push_back(
      {"engine.optimizer.params", "ZeroOneAdam", "local_step_scaler", 1, 100, observe::training, frozen_zero_one, 2});
  all.push_back(
      {"engine.optimizer.params", "ZeroOneAdam", "local_step_clipper", 1, 2, observe::training, frozen_zero_one, 2});
  add("Adam AdamW", "adam_w_mode", true, false, R"({"weight_decay": 0.5})");
  add("Adam AdamW", "fp32_optimizer_states", true, false);
  add("SGD", "momentum", 0, 0.9);
  add("SGD", "dampening", 0, 0.5, R"({"momentum": 0.9})");
  add("SGD", "nesterov", false, true, R"({"momentum": 0.9})");
  add("Adagrad", "lr_decay", 0, 1);
  add("Adagrad", "initial_accumulator_value", 0, 1);
  add("RMSprop", "alpha", 0.99, 0.5);
  add("RMSprop", "momentum", 0, 0.9);
  add("RMSprop", "centered", false, true);
  return all;
}

std::vector<KeyObserver> schedules() {
  std::vector<KeyObserver> all = {{"engine.scheduler", "", "type", "WarmupLR", "LRRangeTest", observe::training}};
  const auto add = [&](std::string_view when, std::string_view key, const json& one, const json& other,
                       const char* params = "{}") {
    all.push_back({"engine.scheduler.params",
                   when,
                   key,
                   one,
                   other,
                   observe::schedule,
                   {{"engine", {{"scheduler", {{"params", parsed(params)}}}}}}});
  };
  const char* const total = R"({"total_num_steps": 5000})";
  for (const char* when : {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}) {
    const char* const params = std::string_view(when) == "WarmupLR" ? "{}" : total;
    add(when, "warmup_num_steps", 1000, 10, params);
    add(when, "warmup_type", "log", "linear", params);
  }
  for (const char* when : {"WarmupLR", "WarmupDecayLR"}) {
    const char* const params = std::string_view(when) == "WarmupLR" ? "{}" : total;
    add(when, "warmup_min_lr", 0, 0.0001, params);
    add(when, "warmup_max_lr", 0.001, 0.002, params);
  }
  for (const char* when : {"WarmupDecayLR", "WarmupCosineLR"}) {
    add(when, "total_num_steps", 5000, 3000);
  }
  add("WarmupCosineLR", "warmup_min_ratio", 0, 0.5, total);
  add("WarmupCosineLR", "cos_min_ratio", 0.0001, 0.1, total);
  const char* const cycle =
      R"({"cycle_min_lr": 0.001, "cycle_max_lr": 0.01, "decay_step_size": 100, "decay_lr_rate": 0.1, "decay_mom_rate": 0.1})";
  add("OneCycle", "cycle_min_lr", 0.001, 0.002, cycle);
  add("OneCycle", "cycle_max_lr", 0.01, 0.02, cycle);
  add("OneCycle", "decay_lr_rate", 0.1, 0, cycle);
  add("OneCycle", "cycle_first_step_size", 2000, 100, cycle);
  add("OneCycle", "cycle_second_step_size", nullptr, 100, cycle);
  add("OneCycle", "cycle_first_stair_count", 0, 4, cycle);
  add("OneCycle", "cycle_second_stair_count", nullptr, 4, cycle);
  add("OneCycle", "decay_step_size", 100, 0, cycle);
  add("OneCycle", "cycle_momentum", true, false, cycle);
  add("OneCycle", "cycle_min_mom", 0.8, 0.5, cycle);
  add("OneCycle", "cycle_max_mom", 0.9, 0.95, cycle);
  add("OneCycle", "decay_mom_rate", 0.1, 0, cycle);
  add("LRRangeTest", "lr_range_test_min_lr", 0.001, 0.01);
  add("LRRangeTest", "lr_range_test_step_size", 2000, 100);
  add("LRRangeTest", "lr_range_test_step_rate", 1.0, 2.0);
  add("LRRangeTest", "lr_range_test_staircase", false, true);
  return all;
}

std::vector<KeyObserver> all_observers() {
  std::vector<KeyObserver> all;
  for (const auto& part : {top_level(), zero_and_pipeline(), averaging(), activation_checkpointing(), compression(),
                           precision(), optimizers(), schedules()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// What engine.tensor_parallel does to a model is in split_ordinary_test.cpp and tests/parallel/tensor: the model here
// has no rules for it. What offload's keys do is seen on a device: tests/sim_device/offload_keys_test.cpp.
bool is_engine(std::string_view section) {
  return section.starts_with("engine") && !section.starts_with("engine.tensor_parallel") &&
         !section.starts_with("engine.zero_optimization.offload_") && section != "engine.aio";
}

// A key that is honoured from now on gets an observer above.
TEST(KeyBehaviourTest, EveryHonouredKeyIsObserved) {
  EXPECT_THAT(test::without_observer(all_observers(), is_engine), IsEmpty());
}

TEST(KeyBehaviourTest, AnHonouredKeyWithoutAnObserverIsFound) {
  std::vector<KeyObserver> all = all_observers();
  std::erase_if(all, [](const KeyObserver& observer) { return observer.key == "seed_layers"; });
  EXPECT_THAT(test::without_observer(all, is_engine),
              testing::ElementsAre("engine.pipeline: seed_layers is honoured, but nobody observes what it does"));
  all.push_back({"engine.pipeline", "", "use_reentrant", true, false, observe::layers});
  EXPECT_THAT(test::without_observer(all, is_engine),
              testing::Contains("1 observers are of keys that are not honoured"));
}

// Keys that a build without extensions refuses.
bool is_of_extension(const KeyObserver& observer) {
  return observer.section == "engine.parameter_averaging" || observer.section == "engine.gradient_compression" ||
         observer.when.starts_with("OneBit") || observer.when.starts_with("ZeroOne");
}

class EveryHonouredKeyHasAnEffect : public testing::TestWithParam<int> {};

TEST_P(EveryHonouredKeyHasAnEffect, OnWhatAnEngineDoesOrHolds) {
  std::vector<KeyObserver> observers = all_observers();
  if (!has_extensions()) {
    std::erase_if(observers, is_of_extension);
  }
  EXPECT_THAT(test::without_effect(observers, GetParam(), kCommon), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryHonouredKeyHasAnEffect, testing::Values(1, 2, 3),
                         testing::PrintToStringParamName());

// What has no effect must not be taken for one.
TEST(KeyBehaviourTest, AKeyWithoutEffectIsFound) {
  const std::vector<KeyObserver> idle = {{"engine", "", "disable_allgather", false, true, observe::training}};
  EXPECT_THAT(test::without_effect(idle, 1, kCommon),
              testing::ElementsAre(HasSubstr("engine: disable_allgather has no effect")));
}

} // namespace
} // namespace trireme::engine
