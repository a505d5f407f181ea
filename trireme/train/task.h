#pragma once

#include <trireme/config/run_file.h>
#include <trireme/data/make_dataset.h>
#include <trireme/engine/engine.h>
#include <trireme/models/language_model.h>
#include <trireme/parallel/pipeline/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace trireme::train {

/// A rank's model and how to interpret its losses: what a type of the Registry makes.
struct Task {
  /// In logs and reports: "GPT, 4 layers, ...".
  std::string description;
  std::shared_ptr<torch::nn::Module> model;
  /// Instead of model and loss if the run builds a list of layers.
  std::shared_ptr<pipeline::PipelineModule> pipeline;
  engine::LossFunction loss;
  /// Tokens per sample; 0 if samples are counted.
  int64_t tokens_per_sample = 0;
  /// Divides a loss to convert it to nats per byte (text), else 1.
  double loss_divisor = 1;
  /// Shown after losses: "nats/byte".
  std::string loss_unit;
  /// Set when the model is a language model in one piece.
  models::LanguageModel language;
  /// Set for a language model in any form.
  std::optional<models::LanguageOptions> language_options;
  /// Set for classifiers: number of the batch's real rows that are right. [], int64, on the device of batch and
  /// model.
  /// Called without gradients.
  std::function<at::Tensor(const data::Batch&)> count_right;
  /// The same for a list of layers, from its outputs for the real rows and their targets.
  std::function<at::Tensor(const pipeline::Tensors& outputs, const pipeline::Tensors& targets)> count_right_of;
};

struct ModelContext;

/// Build a run file's gpt or llama, its bert, cnn and alexnet, with the weights of their init_from, if set.
Task language_task(const ModelContext& context);
Task bert_task(const ModelContext& context);
Task cnn_task(const ModelContext& context);
Task alexnet_task(const ModelContext& context);

/// The inputs of one sample, for a partition that measures layers; none from a loader.
pipeline::Tensors sample_inputs(const data::Datasets& datasets);

/// Errors: InputError when the data's samples do not fit the model.
void check_samples(const config::RunConfig& run, const data::Datasets& datasets);

} // namespace trireme::train
