#include <trireme/train/task.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/weight_files.h>
#include <trireme/data/tokenizer.h>
#include <trireme/engine/evaluation_mode.h>
#include <trireme/engine/same_options.h>
#include <trireme/models/checkpoint_weights.h>
#include <trireme/models/cnn.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <set>

namespace trireme::train {
namespace {

Task language_task(const config::RunConfig& run, const data::Datasets& datasets, const models::ModelRanks& ranks) {
  Task task;
  config::ModelConfig model = run.model;
  if (model.shape().vocab_size == 0) { // "the tokenizer's"
    model.set_vocab_size(datasets.tokenizer->vocab_size());
  }
  const models::LanguageOptions options = model.language();
  task.tokens_per_sample = model.shape().sequence_length;
  task.loss_divisor = datasets.bytes_per_token.value_or(1);
  task.language_options = options;
  if (run.builds_layers()) {
    task.pipeline = std::make_shared<pipeline::PipelineModule>(models::language_layers(options, ranks),
                                                               models::language_loss(options, ranks), run.pipeline);
    const std::vector<int64_t> one = {0}; // sample inputs, if the partition measures layers
    task.pipeline->set_sample_inputs(datasets.train->get(one).inputs);
    return task;
  }
  task.language = models::LanguageModel(options, ranks);
  task.model = task.language.module();
  task.loss = [language = task.language](const data::Batch& batch) {
    return language.loss(batch.input(), batch.target());
  };
  return task;
}

void load_weights(models::Cnn& cnn, const std::filesystem::path& path) {
  if (const auto saved = models::checkpoint_in(path)) {
    std::set<std::string> names;
    for (const auto& item : cnn->named_parameters()) {
      models::load_parameter(*saved, item.key(), item.value());
      names.insert(item.key());
    }
    models::check_parameter_names(*saved, names);
    return;
  }
  const auto weights = models::plain_weights(path);
  for (const auto& item : cnn->named_parameters()) {
    item.value().detach().copy_(weights.tensor(item.key()));
  }
}

Task cnn_task(const config::RunConfig& run) {
  Task task;
  models::Cnn cnn(run.model.cnn);
  if (!run.model.cnn.init_from.empty()) {
    load_weights(cnn, run.model.cnn.init_from);
  }
  task.model = cnn.ptr();
  task.loss = [cnn](const data::Batch& batch) mutable { return cnn->loss(batch.input(), batch.target()); };
  task.count_right = [cnn](const data::Batch& batch) mutable {
    const torch::NoGradGuard no_grad;
    const engine::EvaluationMode mode(*cnn);
    const at::Tensor chosen = cnn->forward(batch.input().narrow(0, 0, batch.samples)).argmax(1);
    return chosen.eq(batch.target().narrow(0, 0, batch.samples)).sum();
  };
  return task;
}

} // namespace

data::Datasets open_data(const config::RunConfig& run, comm::World& world) {
  data::Datasets datasets;
  engine::check_together(world.group(),
                         [&] { datasets = data::make_datasets(run.data, {world.local_rank(), world.local_size()}); });
  return datasets;
}

void check_samples(const config::RunConfig& run, const data::Datasets& datasets) {
  if (run.model.kind != config::ModelConfig::Kind::cnn) {
    return;
  }
  const std::vector<int64_t> one = {0};
  const std::vector<int64_t> wanted = {run.model.cnn.channels, run.model.cnn.side, run.model.cnn.side};
  for (const auto& [set, images] :
       {std::pair(datasets.train, "images"), std::pair(datasets.validation, "validation images")}) {
    if (!set) {
      continue;
    }
    const auto there = set->get(one).input().sizes().slice(1).vec();
    if (there != wanted) {
      throw InputError("train",
                       concat("the ", images, " are ", at::IntArrayRef(there),
                              " (channels, height, width), the model takes ", at::IntArrayRef(wanted)),
                       "Set model.channels and model.side to those of the images.");
    }
  }
}

Task make_task(const config::RunConfig& run, const data::Datasets& datasets, const models::ModelRanks& ranks) {
  return run.model.is_language() ? language_task(run, datasets, ranks) : cnn_task(run);
}

} // namespace trireme::train
