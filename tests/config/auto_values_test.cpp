#include <trireme/base/error.h>
#include <trireme/config/deepspeed_json.h>

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

namespace trireme::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

EngineConfig understood(const std::string& text, const AutoValues& known = {}) {
  return read_deepspeed(JsonNode::parse(text, "ds.json"), known);
}

std::string complaint(const std::string& text) {
  try {
    understood(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(AutoValuesTest, BatchSizesFollowFromWhatIsANumber) {
  const auto batch = [](const char* text) { return understood(text).batch_for(2); };
  const BatchTriple trainer{16, 8, 1}; // 8 samples a micro-batch are the Trainer's
  EXPECT_EQ(
      batch(
          R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"})"),
      trainer);
  EXPECT_EQ(batch(R"({"train_micro_batch_size_per_gpu": "auto"})"), trainer);
  EXPECT_EQ(batch(R"({"train_batch_size": "auto"})"), trainer);
  EXPECT_EQ(
      batch(
          R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"})"),
      (BatchTriple{32, 16, 1}));
  EXPECT_EQ(
      batch(
          R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 4})"),
      (BatchTriple{64, 8, 4}));
  EXPECT_EQ(
      batch(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": "auto"})"),
      (BatchTriple{32, 4, 4}));
  EXPECT_EQ(understood(R"({"train_micro_batch_size_per_gpu": "auto"})", {.micro_batch = 3}).batch_for(2),
            (BatchTriple{6, 3, 1}));
  EXPECT_THROW(batch(R"({"gradient_accumulation_steps": "auto"})"), InputError) << "nobody asked for a batch";
}

TEST(AutoValuesTest, OptimizerAndScheduler) {
  const std::string text =
      R"({"optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}}})";
  const EngineConfig config = understood(text, {.lr = 3e-4, .warmup_steps = 20, .steps = 500});
  EXPECT_EQ(config.optimizer->lr(), 3e-4);
  EXPECT_EQ(std::get<optim::AdamOptions>(config.optimizer->rule).beta1, 0.9);
  EXPECT_EQ(std::get<optim::AdamOptions>(config.optimizer->rule).eps, 1e-8);
  EXPECT_EQ(config.optimizer->weight_decay(), 0);
  EXPECT_EQ(config.schedule.warmup_min_lr, 0);
  EXPECT_EQ(config.schedule.warmup_max_lr, 3e-4);
  EXPECT_EQ(config.schedule.warmup_num_steps, 20);
  EXPECT_EQ(config.schedule.total_num_steps, 500);
  EXPECT_EQ(config.source["optimizer"]["params"]["lr"], "auto") << "a checkpoint keeps what was written";
  EXPECT_THAT(complaint(text),
              AllOf(HasSubstr("ds.json:2:"),
                    HasSubstr("scheduler.params.total_num_steps: \"auto\" stands for the steps of the run"),
                    HasSubstr(".steps = 1000")));
  EXPECT_EQ(understood(R"({"optimizer": {"type": "Lion", "params": {"lr": 0.01, "betas": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}}})")
                .schedule.warmup_max_lr,
            0.01);
}

TEST(AutoValuesTest, BucketsFollowTheWidth) {
  const std::string text =
      R"({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}})";
  const EngineConfig wide = understood(text, {.hidden = 100});
  EXPECT_EQ(wide.data_parallel.bucket_bytes, 40000);
  EXPECT_EQ(wide.zero.prefetch_elements, 9000);
  EXPECT_EQ(wide.zero.param_persistence_threshold, 1000);
  const EngineConfig unknown = understood(text);
  EXPECT_EQ(unknown.data_parallel.bucket_bytes, understood("{}").data_parallel.bucket_bytes);
  EXPECT_EQ(unknown.zero.prefetch_elements, std::nullopt);
  EXPECT_EQ(unknown.zero.param_persistence_threshold, 100000);
}

TEST(AutoValuesTest, OneSentenceSaysWhatEachBecame) {
  EXPECT_THAT(
      understood(
          R"({"gradient_clipping": "auto", "optimizer": {"type": "AdamW", "params": {"lr": "auto", "eps": "auto"}}, "fp16": {"enabled": "auto"}})")
          .notes,
      ElementsAre("ds.json:1:1: \"auto\" became gradient_clipping = 1.0, optimizer.params.lr = 5e-05, "
                  "optimizer.params.eps left out, fp16.enabled = false."));
}

TEST(AutoValuesTest, KeysWithoutEffectMayKeepIt) {
  EXPECT_THAT(
      understood(
          R"({"zero_optimization": {"stage": 3, "sub_group_size": "auto", "stage3_gather_16bit_weights_on_model_save": "auto",
    "offload_param": {"device": "auto", "nvme_path": "auto"}}, "checkpoint": {"use_node_local_storage": "auto"}})")
          .notes,
      IsEmpty());
}

TEST(AutoValuesTest, TheTypeIsLeftToTheEngine) {
  const precision::PrecisionOptions options =
      understood(R"({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "initial_scale_power": 32}})").precision;
  EXPECT_EQ(options.compute, precision::Type::fp32);
  EXPECT_TRUE(options.bf16_if_faster);
  EXPECT_TRUE(understood(R"({"bfloat16": {"enabled": "auto"}})").precision.bf16_if_faster);
}

// What is switched off is never an error.
TEST(SwitchedOffTest, NothingInItIsAnError) {
  for (
      const char* text :
      {R"({"fp16": {"enabled": false, "loss_scale": "dynamic", "loss_scale_window": 0, "fp16_master_weights_and_grads": true}})",
       R"({"bf16": {"enabled": false, "check_overflow": false}, "bfloat16": null})",
       R"({"bfloat16": {"enabled": false, "fancy": [1]}})", R"({"amp": {"enabled": false, "opt_level": 2}})",
       R"({"torch_autocast": {"enabled": false, "dtype": "fp8"}})",
       R"({"hybrid_engine": {"enabled": false, "max_out_tokens": 512, "inference_tp_size": 1}})",
       R"({"zero_optimization": {"stage": 2, "cpu_offload": false, "offload_optimizer": {"device": "none", "pin_memory": 1, "super_offload": true, "working": 3}}})",
       R"({"flops_profiler": {"enabled": false, "profile_step": -1, "output_file": false}})",
       R"({"comms_logger": {"enabled": false, "prof_ops": [1]}, "elasticity": {"enabled": false, "micro_batch_sizes": "2,4"}})",
       R"({"tensorboard": {"enabled": false, "output_path": null, "job_name": 5}, "csv_monitor": {"enabled": false, "team": "x"}})",
       R"({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": false, "quantize_groups": 1}, "different_groups": {}}, "layer_reduction": {"enabled": false}}})",
       R"({"compile": {"deepcompile": false, "backend": "inductor"}, "autotuning": {"enabled": false, "fast": 1}, "moe": {"enabled": false}})"}) {
    SCOPED_TRACE(text);
    EXPECT_EQ(complaint(text), "");
    nlohmann::ordered_json meaning = to_json(understood(text));
    nlohmann::ordered_json nothing = to_json(understood("{}"));
    EXPECT_EQ(meaning["zero_optimization"].erase("stage"), nothing["zero_optimization"].erase("stage"));
    EXPECT_EQ(meaning, nothing);
  }
}

TEST(SwitchedOffTest, WhatIsIgnoredIsNamed) {
  EXPECT_THAT(understood(R"({"fp16": {"enabled": false, "los_scale": 1, "loss_scale_window": 0}})").notes,
              ElementsAre(AllOf(HasSubstr("ds.json:1:42: fp16.los_scale has no effect: unknown key"),
                                HasSubstr("switched off")),
                          AllOf(HasSubstr("fp16.loss_scale_window has no effect: it is not a whole number >= 1"),
                                HasSubstr("switched off"))));
}

TEST(SwitchedOffTest, ASectionThatDoesNotSaySoIsRead) {
  EXPECT_THAT(complaint(R"({"fp16": {"enable": true}})"),
              AllOf(HasSubstr("fp16.enable: unknown key"), HasSubstr("\"enabled\"")));
  EXPECT_THAT(complaint(R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "super_offload": true}}})"),
              HasSubstr("not supported: "));
  EXPECT_THAT(
      complaint(R"({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}}})"),
      HasSubstr("not supported: "));
}

TEST(OtherNamesTest, OlderNamesAreRead) {
  for (const char* text :
       {R"({"bfloat16": {"enabled": true}})", R"({"bfloat16": {"enabled": true}, "bf16": {"enabled": false}})",
        R"({"bfloat16": {"enabled": false}, "bf16": {"enabled": true}})"}) {
    EXPECT_EQ(understood(text).precision.compute, precision::Type::bf16) << text;
  }
  EXPECT_EQ(understood(R"({"zero_optimization": {"param_persistence_threshold": 7, "prefetch_bucket_size": 8}})")
                .zero.param_persistence_threshold,
            7);
  EXPECT_EQ(understood(R"({"zero_optimization": {"reduce_bucket_size": 0}})").data_parallel.bucket_bytes, 4)
      << "one parameter a bucket";
  EXPECT_THAT(understood(R"({"zero_optimization": {"sub_group_size": 0, "max_live_parameters": 0}})").notes,
              Not(IsEmpty()));
  EXPECT_THAT(complaint(R"({"fp16": {"enabled": true}, "bfloat16": {"enabled": true}})"),
              HasSubstr("fp16 is enabled as well"));
}

TEST(OtherNamesTest, WithoutAnOptimizerItIsAdamW) {
  const optim::OptimizerOptions optimizer = understood("{}").optimizer_or_adamw();
  EXPECT_TRUE(std::holds_alternative<optim::AdamOptions>(optimizer.rule));
  EXPECT_TRUE(std::get<optim::AdamOptions>(optimizer.rule).decoupled_weight_decay);
  EXPECT_EQ(optimizer.lr(), 1e-3);
  EXPECT_EQ(understood(R"({"bf16": {"enabled": true, "bf16_optimizer_states": true}})").optimizer_or_adamw().state_type,
            optim::StateType::bf16);
}

} // namespace
} // namespace trireme::config
