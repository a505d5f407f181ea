#pragma once

#include <trireme/comm/world.h>
#include <trireme/config/run_file.h>
#include <trireme/data/make_dataset.h>
#include <trireme/engine/engine.h>
#include <trireme/models/gpt.h>
#include <trireme/parallel/pipeline/module.h>

#include <memory>
#include <optional>

namespace trireme::tools {

/// A model with what a run needs to know about its losses.
struct Task {
  std::shared_ptr<torch::nn::Module> model;
  /// In place of model and loss where the run builds a list of layers.
  std::shared_ptr<pipeline::PipelineModule> pipeline;
  engine::LossFunction loss;
  /// Tokens of one sample; 0 where samples are counted.
  int64_t tokens_per_sample = 0;
  /// Divides a loss to express it in nats a byte (text), else 1.
  double loss_divisor = 1;
  /// Set when the model is a GPT in one piece.
  models::Gpt gpt{nullptr};
  std::optional<models::GptOptions> gpt_options;
  /// Set for classifiers: how many of the batch's real rows are right.
  /// [], int64, where the batch and the model are.
  std::function<at::Tensor(const data::Batch&)> count_right;
};

/// Builds the model of `run`, from its init_from file where one is named.
Task make_task(const config::RunConfig& run, const data::Datasets& datasets, const models::ModelRanks& ranks = {});

/// The data of `run`; the ranks of a host divide the check of its tokens. Collective. Errors: InputError on every rank
/// for what one cannot read.
data::Datasets open_data(const config::RunConfig& run, comm::World& world);

/// Errors: InputError when the model does not take what the data has.
void check_samples(const config::RunConfig& run, const data::Datasets& datasets);

} // namespace trireme::tools
