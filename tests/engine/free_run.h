#pragma once

#include "small_run.h"

#include <trireme/base/error.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::engine {

inline config::EngineConfig micro_batches(int count, int replicas = 1) {
  const std::string text = concat(R"({"train_micro_batch_size_per_gpu": 3, "train_batch_size": )", 3 * count * replicas,
                                  R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})");
  return config::read_deepspeed(JsonNode::parse(text, "test.json"));
}

/// A pipeline of any layers, with the mean square as its loss.
struct FreeRun {
  std::shared_ptr<pipeline::PipelineModule> model;
  std::shared_ptr<Engine> engine;

  FreeRun(comm::World& world, const pipeline::LayerList& layers, int stages, int count,
          pipeline::PipelineOptions options = {}, int zero_stage = 0) {
    options.stages = stages;
    options.seed_layers = true;
    model = std::make_shared<pipeline::PipelineModule>(
        layers,
        [](const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
          return at::mse_loss(outputs.at(0), targets.at(0));
        },
        options);
    InitializeOptions initialize_options;
    initialize_options.pipeline = model;
    initialize_options.config = micro_batches(count, world.size() / stages);
    initialize_options.config.zero.stage = zero_stage;
    initialize_options.config.zero.param_persistence_threshold = 0;
    engine = initialize(world, initialize_options).engine;
  }
};

/// Losses of three steps on batches from `make`, which gets the number of the micro-batch.
inline std::vector<double> losses(FreeRun& run, const std::function<data::Batch(int)>& make) {
  std::vector<double> all;
  int number = 0;
  for (int step = 0; step < 3; ++step) {
    all.push_back(run.engine->train_batch([&] { return make(number++); }).item<double>());
  }
  return all;
}

inline data::Batch row_batch(int number, int64_t rows = 3) {
  const at::Tensor x = torch::linspace(-1, 1, rows * 4).view({rows, 4}) * (1 + number % 4);
  return {{x}, {x.sum(1, true)}, rows};
}

} // namespace trireme::engine
