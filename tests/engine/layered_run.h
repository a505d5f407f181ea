#pragma once

#include "small_run.h"

#include <trireme/models/gpt_layers.h>

#include <memory>
#include <vector>

namespace trireme::engine {

inline models::GptOptions four_layers() {
  models::GptOptions options = small_gpt();
  options.layers = 4;
  return options;
}

/// A GPT as a list of layers, which are its units at ZeRO stage 3.
struct LayeredRun {
  std::shared_ptr<pipeline::PipelineModule> model;
  Initialized made;

  LayeredRun(comm::World& world, const config::EngineConfig& config, int stages = 1, const models::GptOptions& shape = four_layers()) {
    torch::set_num_threads(1); // tiny tensors
    pipeline::PipelineOptions options_of_stages;
    options_of_stages.stages = stages;
    model = std::make_shared<pipeline::PipelineModule>(models::gpt_layers(shape), models::token_loss, options_of_stages);
    InitializeOptions options;
    torch::manual_seed(7); // layers are built in initialize()
    options.pipeline = model;
    options.config = config;
    options.training_data = std::make_shared<Counting>();
    options.shuffle = false;
    made = initialize(world, options);
  }
  Engine& engine() {
    return *made.engine;
  }
  double step() {
    return made.engine->train_batch().item<double>();
  }
};

} // namespace trireme::engine
