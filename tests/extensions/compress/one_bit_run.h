#pragma once

#include <tests/engine/small_run.h>

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/models/gpt_layers.h>

#include <gtest/gtest.h>

#include <optional>

namespace trireme::engine {

inline constexpr double kBeta1 = 0.9;
inline constexpr double kBeta2 = 0.95;
inline constexpr double kDecay = 0.1;

/// As small_config(), with 1-bit Adam that warms up for so many steps; absent: "auto".
inline config::EngineConfig one_bit_config(std::optional<int64_t> freeze_step, int64_t accumulation = 1,
                                           double clipping = 0, int64_t global_batch = 48, int zero_stage = 0) {
  config::EngineConfig config = small_config(global_batch, accumulation, clipping);
  config.zero.stage = zero_stage;
  const std::string freeze = freeze_step ? std::to_string(*freeze_step) : "\"auto\"";
  config.optimizer =
      config::read_deepspeed(
          JsonNode::parse(
              concat(
                  R"({"train_batch_size": 48, "optimizer": {"type": "OneBitAdam", "params": {"lr": 0.01, "betas": [)",
                  kBeta1, ", ", kBeta2, R"(], "weight_decay": )", kDecay, R"(, "freeze_step": )", freeze, "}}}"),
              "test.json"))
          .optimizer;
  return config;
}

/// The bits of all parameters of a module, to be compared between ranks: sums over their integers.
inline at::Tensor fingerprint(torch::nn::Module& module) {
  std::vector<at::Tensor> sums;
  for (const at::Tensor& parameter : module.parameters()) {
    const at::Tensor bits =
        parameter.detach().to(torch::kFloat32).contiguous().view(-1).view(torch::kInt32).to(torch::kInt64);
    sums.push_back((bits * (torch::arange(bits.numel()) % 1009 + 1)).sum());
  }
  return torch::stack(sums);
}

inline void expect_equal_on(const comm::Group& group, torch::nn::Module& module, const char* when) {
  const at::Tensor mine = fingerprint(module);
  const at::Tensor all = torch::empty({group.size(), mine.numel()}, torch::kInt64);
  group.all_gather(all.view(-1), mine).wait();
  EXPECT_TRUE(all.eq(mine).all().item<bool>()) << "the ranks have different parameters " << when;
}

/// This rank's optimizer states, and all parameters, by name, as copies.
inline std::map<std::string, at::Tensor> states_of(SmallRun& run) {
  std::map<std::string, at::Tensor> states;
  run.made.optimizer->for_each_state(
      [&](const std::string& state, const bucket::TensorInfo& tensor, int64_t, const at::Tensor& values) {
        states[concat(state, '/', tensor.name)] = values.clone();
      },
      false);
  for (const auto& item : run.model->named_parameters()) {
    states[item.key()] = item.value().detach().clone();
  }
  return states;
}

} // namespace trireme::engine
