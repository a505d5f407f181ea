#pragma once

#include <trireme/base/json.h>
#include <trireme/config/deepspeed_json.h>
#include <trireme/engine/initialize.h>
#include <trireme/models/gpt.h>

#include <tests/support/batch_of_step.h>

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <functional>

namespace trireme::engine {

/// 192 short sequences that can be learned: counting upwards with a stride.
class Counting : public data::Dataset {
 public:
  int64_t size() const override { return 192; }
  data::Batch get(std::span<const int64_t> indices) const override {
    std::vector<at::Tensor> rows;
    for (const int64_t i : indices) {
      rows.push_back((torch::arange(9) * (1 + i % 5) + i * 7) % 31);
    }
    const at::Tensor tokens = torch::stack(rows);
    return {{tokens.slice(1, 0, 8)}, {tokens.slice(1, 1, 9)}, static_cast<int64_t>(indices.size())};
  }
  std::string describe() const override { return "counting"; }
};

/// A collate function.
inline data::Batch stacked(std::vector<data::Batch> samples) {
  std::vector<at::Tensor> inputs, targets;
  for (const data::Batch& sample : samples) {
    inputs.push_back(sample.input());
    targets.push_back(sample.target());
  }
  return {{torch::cat(inputs)}, {torch::cat(targets)}, std::ssize(samples)};
}

inline models::GptOptions small_gpt(double dropout = 0) {
  models::GptOptions options;
  options.layers = 2;
  options.hidden = 16;
  options.heads = 2;
  options.sequence_length = 8;
  options.vocab_size = 31;
  options.dropout = dropout;
  return options;
}

/// A DeepSpeed configuration as text with the parts that tests vary.
inline config::EngineConfig small_config(int64_t global_batch, int64_t accumulation, double clipping = 1.0) {
  const std::string text =
      concat(R"({"train_batch_size": )", global_batch, R"(, "gradient_accumulation_steps": )", accumulation,
             R"(, "gradient_clipping": )", clipping,
             R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1}}})");
  config::EngineConfig config = config::read_deepspeed(JsonNode::parse(text, "test.json"));
  config.data_parallel.bucket_bytes = 4000; // several buckets
  config.data_parallel.first_bucket_bytes = 1000;
  return config;
}

inline constexpr int64_t kZeroBatch = 48;

inline config::EngineConfig zero_config(int stage, int64_t accumulation = 1, double clipping = 1.0) {
  config::EngineConfig config = small_config(kZeroBatch, accumulation, clipping);
  config.zero.stage = stage;
  config.zero.param_persistence_threshold = 40; // everything but biases and norms comes and goes
  return config;
}

/// What a run reports of its steps.
struct Curve {
  std::vector<double> losses;
  std::vector<double> norms;
};

/// Training written with nothing but libtorch: one process, the whole batch, torch's AdamW and clipping (0: none).
inline Curve plain_curve(
    torch::nn::Module& model, const std::function<at::Tensor(const data::Batch&)>& loss_of, const data::Dataset& data,
    int64_t global_batch, int steps, double clipping = 1.0,
    const torch::optim::AdamWOptions& options = torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).weight_decay(0.1)) {
  torch::optim::AdamW optimizer(model.parameters(), options);
  Curve curve;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(test::batch_of_step(data, step, global_batch));
    loss.backward();
    curve.norms.push_back(torch::nn::utils::clip_grad_norm_(model.parameters(), clipping > 0 ? clipping : 1e30));
    optimizer.step();
    curve.losses.push_back(loss.item<double>());
  }
  return curve;
}

/// The same of a GPT on Counting. `prepare` may freeze parameters.
inline Curve plain_gpt_curve(int64_t global_batch, int steps, double clipping, const models::GptOptions& shape,
                             const std::function<void(torch::nn::Module&)>& prepare = nullptr) {
  models::Gpt model(shape);
  if (prepare) {
    prepare(*model);
  }
  return plain_curve(
      *model, [&](const data::Batch& batch) { return model->loss(batch.input(), batch.target()); }, Counting(),
      global_batch, steps, clipping);
}

inline std::vector<double> plain_losses(int64_t global_batch, int steps, double clipping,
                                        std::vector<double>* norms = nullptr,
                                        const models::GptOptions& shape = small_gpt(),
                                        const std::function<void(torch::nn::Module&)>& prepare = nullptr) {
  const Curve curve = plain_gpt_curve(global_batch, steps, clipping, shape, prepare);
  if (norms != nullptr) {
    norms->insert(norms->end(), curve.norms.begin(), curve.norms.end());
  }
  return curve.losses;
}

struct SmallRun {
  models::Gpt model;
  Initialized made;

  SmallRun(comm::World& world, const config::EngineConfig& config, bool shuffle = false, double dropout = 0)
      : model(small_gpt(dropout)) {
    InitializeOptions options;
    options.model = model.ptr();
    options.loss = [gpt = model](const data::Batch& batch) mutable { return gpt->loss(batch.input(), batch.target()); };
    options.config = config;
    options.training_data = std::make_shared<Counting>();
    options.shuffle = shuffle;
    made = initialize(world, options);
  }
  Engine& engine() { return *made.engine; }
};

} // namespace trireme::engine
