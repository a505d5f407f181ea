#pragma once

#include <trireme/comm/world.h>
#include <trireme/config/run_file.h>
#include <trireme/data/make_dataset.h>
#include <trireme/engine/engine.h>
#include <trireme/models/language_model.h>
#include <trireme/parallel/pipeline/module.h>

#include <memory>
#include <optional>

namespace trireme::train {

/// A model and how to interpret its losses.
struct Task {
  std::shared_ptr<torch::nn::Module> model;
  /// Instead of model and loss if the run builds a list of layers.
  std::shared_ptr<pipeline::PipelineModule> pipeline;
  engine::LossFunction loss;
  /// Tokens per sample; 0 if samples are counted.
  int64_t tokens_per_sample = 0;
  /// Divides a loss to convert it to nats per byte (text), else 1.
  double loss_divisor = 1;
  /// Set when the model is a language model in one piece.
  models::LanguageModel language;
  /// Set for a language model in any form.
  std::optional<models::LanguageOptions> language_options;
  /// Set for classifiers: number of the batch's real rows that are right. [], int64, on the device of batch and
  /// model.
  std::function<at::Tensor(const data::Batch&)> count_right;
};

/// Builds the model of `run`, with the weights of its init_from, if set.
Task make_task(const config::RunConfig& run, const data::Datasets& datasets, const models::ModelRanks& ranks = {});

/// Opens the data of `run`; the ranks of a host divide the check of its tokens. Collective. Errors: InputError on every
/// rank if one cannot read its files.
data::Datasets open_data(const config::RunConfig& run, comm::World& world);

/// Errors: InputError when the data's samples do not fit the model.
void check_samples(const config::RunConfig& run, const data::Datasets& datasets);

} // namespace trireme::train
