// The code of docs/cpp_configuration.md, and that it says what the JSON beside it says.
#include <trireme/base/json.h>
#include <trireme/config/deepspeed_json.h>
#include <trireme/config/engine_config.h>

#include <tests/support/page_code.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace trireme {
using config::EngineConfig; // as trireme.h has it

namespace {

std::string written(const EngineConfig& config) {
  return config::to_json(config).dump(2);
}
std::string written(const std::string& json) {
  return written(config::read_deepspeed(JsonNode::parse(json, "page.json")));
}

TEST(CppConfigurationPageTest, TheCodeIsTheJson) {
  trireme::EngineConfig config;  // the defaults are those of docs/configuration.md
  config.batch.micro = 4;        // samples of a rank and micro-batch
  config.batch.accumulation = 2; // micro-batches of a step
  config.gradient_clipping = 0;  // as a loop without clip_grad_norm_()

  config.optimizer = trireme::optim::OptimizerOptions{
      .rule = trireme::optim::AdamOptions{.lr = 3e-4, .beta2 = 0.95, .weight_decay = 0.1}};
  config.optimizer->decay_rule = trireme::optim::DecayRule::matrices; // not of biases and norms

  config.schedule.kind = trireme::optim::ScheduleOptions::Kind::warmup_cosine;
  config.schedule.warmup_num_steps = 100;
  config.schedule.total_num_steps = 2000;
  config.schedule.cos_min_ratio = 0.1;

  config.precision.compute = trireme::precision::Type::bf16; // parameters and gradients; masters stay fp32

  config.zero.stage = 2;
  config.offload.optimizer.place = trireme::offload::Place::host;

  config.activations.policy = trireme::activations::Way::recompute;

  EXPECT_EQ(written(config), written(R"({
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1, "weight_decay_rule": "matrices"}},
    "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 100, "total_num_steps": 2000, "cos_min_ratio": 0.1}},
    "bf16": {"enabled": true},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "activation_checkpointing": {"policy": "recompute"}
  })"));
}

TEST(CppConfigurationPageTest, OtherOptimizers) {
  trireme::EngineConfig config;
  config.batch.micro = 1;
  config.optimizer = trireme::optim::OptimizerOptions{
      .rule = trireme::optim::SgdOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true}};
  EXPECT_EQ(written(config), written(R"({"train_micro_batch_size_per_gpu": 1,
                                        "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": true}}})"));
}

TEST(CppConfigurationPageTest, ThePageShowsThisCode) {
  EXPECT_GE(test::code_lines_of("docs/cpp_configuration.md", {"tests/config/cpp_page_test.cpp"}), 14);
}

} // namespace
} // namespace trireme
