#pragma once

#include "one_bit_run.h"

#include <filesystem>
#include <vector>

namespace trireme::engine {

/// As small_config(), with an optimizer or other sections in place of its own: {.optimizer = R"({"type":
/// "OneBitLamb"})"}.
struct Compression {
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1}})";
  std::string gradients = {}; // "gradient_compression"
  int64_t accumulation = 1;
  double clipping = 0;
  int zero_stage = 0;
  bool bf16 = false;
  int64_t global_batch = 48;

  config::EngineConfig config() const {
    config::EngineConfig config = small_config(global_batch, accumulation, clipping);
    const std::string more = gradients.empty() ? "" : R"(, "gradient_compression": )" + gradients;
    const config::EngineConfig read = config::read_deepspeed(
        JsonNode::parse(concat(R"({"train_batch_size": 48, "optimizer": )", optimizer, more, "}"), "test.json"));
    config.optimizer = read.optimizer;
    config.compression = read.compression;
    config.zero.stage = zero_stage;
    if (bf16) {
      config.precision.compute = precision::Type::bf16;
    }
    return config;
  }
};

/// The samples of step `number` that one rank of the data axis has, in runs that do not shuffle.
inline data::Batch samples_of(int64_t number, int rank, int ranks) {
  std::vector<int64_t> indices;
  for (int64_t i = rank; i < 48; i += ranks) {
    indices.push_back(((number - 1) * 48 + i) % 192);
  }
  return Counting().get(indices);
}

using Tensors = std::map<std::string, at::Tensor>;

/// All of a state of a checkpoint, by parameter: "" of the parameters themselves, "exp_avg". Zeros for what it does not
/// have.
inline Tensors read_all(const checkpoint::Checkpoint& from, torch::nn::Module& model, const std::string& state = "") {
  Tensors all;
  for (const auto& item : model.named_parameters()) {
    const std::string name = state.empty() ? item.key() : concat(state, '/', item.key());
    all[item.key()] = from.has(name) ? from.read(name) : torch::zeros_like(item.value().detach());
  }
  return all;
}

/// A rank's gradients in step `number` at these parameters, by libtorch alone.
inline Tensors gradients_at(const Tensors& parameters, int64_t number, int rank, int ranks) {
  models::Gpt model(small_gpt());
  {
    const torch::NoGradGuard no_grad;
    for (const auto& item : model->named_parameters()) {
      item.value().copy_(parameters.at(item.key()));
    }
  }
  const data::Batch batch = samples_of(number, rank, ranks);
  model->loss(batch.input(), batch.target()).backward();
  Tensors gradients;
  for (const auto& item : model->named_parameters()) {
    gradients[item.key()] = item.value().grad().clone();
  }
  return gradients;
}

/// Of a rank's numbers `of_rank(name, rank)`: their mean with the errors of one checkpoint, less those of a later one,
/// all in units of `unit` (empty: 1). It is what the ranks have agreed on between, if error feedback is right.
template <class OfRank>
Tensors agreed_between(const checkpoint::Checkpoint& before, const checkpoint::Checkpoint& after,
                       torch::nn::Module& model, int ranks, const Tensors& unit, const OfRank& of_rank) {
  const Tensors server_before = read_all(before, model, "server_error"),
                server_after = read_all(after, model, "server_error");
  Tensors agreed;
  for (const auto& [name, error] : server_before) {
    const at::Tensor in_units = unit.empty() ? torch::ones_like(error) : unit.at(name);
    agreed[name] = in_units * (error - server_after.at(name));
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string state = concat("worker_error_", rank);
    const Tensors worker_before = read_all(before, model, state), worker_after = read_all(after, model, state);
    for (auto& [name, sum] : agreed) {
      const at::Tensor in_units = unit.empty() ? torch::ones_like(sum) : unit.at(name);
      sum += (of_rank(name, rank) + in_units * (worker_before.at(name) - worker_after.at(name))) / ranks;
    }
  }
  return agreed;
}

/// The powers of two at or below the roots of second moments; 0 where there is none.
inline Tensors units_of(const Tensors& second) {
  Tensors units;
  for (const auto& [name, square] : second) {
    const at::Tensor unit =
        std::get<1>(torch::frexp(square.sqrt() + 1e-8)).sub(1).to(torch::kFloat64).exp2().to(torch::kFloat32);
    units[name] = unit.masked_fill(square.eq(0), 0);
  }
  return units;
}

/// A run that is saved after so many steps and continued, and one that loads what it has saved in the middle of
/// another.
inline void expect_resume_repeats(comm::World& world, const config::EngineConfig& config,
                                  const std::filesystem::path& folder, int save_after, int steps_more = 5) {
  torch::manual_seed(7);
  SmallRun whole(world, config, true);
  for (int step = 0; step < save_after; ++step) {
    whole.engine().train_batch();
  }
  whole.engine().save_checkpoint(folder);
  torch::manual_seed(8);
  SmallRun second(world, config, true);
  for (int step = 0; step < 6; ++step) { // errors of its own, which the load replaces
    second.engine().train_batch();
  }
  second.engine().load_checkpoint(folder);
  for (int step = 0; step < steps_more; ++step) {
    EXPECT_EQ(second.engine().train_batch().item<double>(), whole.engine().train_batch().item<double>())
        << "saved after " << save_after << ", step " << step;
  }
  const auto ours = states_of(second);
  for (const auto& [name, values] : states_of(whole)) {
    EXPECT_TRUE(ours.at(name).equal(values)) << name << ", saved after " << save_after;
  }
}

/// Parameters after so many steps, as bits.
inline at::Tensor end_of(comm::World& world, const config::EngineConfig& config, int steps) {
  torch::manual_seed(7);
  SmallRun run(world, config);
  for (int step = 0; step < steps; ++step) {
    run.engine().train_batch();
  }
  return fingerprint(*run.model);
}

/// The losses of a pipeline of GPT layers, or of all layers in one stage.
inline std::vector<double> pipeline_losses(comm::World& world, int stages, const config::EngineConfig& config,
                                           int steps) {
  torch::manual_seed(7);
  pipeline::PipelineOptions pipeline;
  pipeline.stages = stages;
  InitializeOptions options;
  options.pipeline =
      std::make_shared<pipeline::PipelineModule>(models::gpt_layers(small_gpt()), models::token_loss, pipeline);
  options.config = config;
  options.training_data = std::make_shared<Counting>();
  options.shuffle = false;
  const Initialized made = initialize(world, options);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    losses.push_back(made.engine->train_batch().item<double>());
  }
  expect_equal_on(made.engine->group(), made.engine->module(), "of one stage");
  return losses;
}

} // namespace trireme::engine
