#pragma once

#include "small_run.h"

#include <trireme/models/gpt_layers.h>

#include <memory>
#include <utility>
#include <vector>

namespace trireme::engine {

inline models::GptOptions four_layers() {
  models::GptOptions options = small_gpt();
  options.layers = 4;
  return options;
}

/// A list of layers, by default those of a GPT, which are its units at ZeRO stage 3.
struct LayeredRun {
  std::shared_ptr<pipeline::PipelineModule> model;
  Initialized made;

  LayeredRun(comm::World& world, const config::EngineConfig& config, const pipeline::PipelineOptions& pipeline,
             pipeline::LayerList layers = models::gpt_layers(four_layers()),
             pipeline::PipelineModule::Loss loss = models::token_loss)
      : model(std::make_shared<pipeline::PipelineModule>(std::move(layers), std::move(loss), pipeline)) {
    InitializeOptions options;
    torch::manual_seed(7); // layers are built in initialize()
    options.pipeline = model;
    options.config = config;
    options.training_data = std::make_shared<Counting>();
    options.shuffle = false;
    made = initialize(world, options);
  }
  /// In one thread: tiny tensors.
  LayeredRun(comm::World& world, const config::EngineConfig& config, int stages = 1,
             const models::GptOptions& shape = four_layers())
      : LayeredRun(world, config, in_one_thread(stages), models::gpt_layers(shape)) {}

  Engine& engine() { return *made.engine; }
  double step() { return made.engine->train_batch().item<double>(); }

 private:
  static pipeline::PipelineOptions in_one_thread(int stages) {
    torch::set_num_threads(1);
    pipeline::PipelineOptions options;
    options.stages = stages;
    return options;
  }
};

} // namespace trireme::engine
