#include <trireme/train/task.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/weight_files.h>
#include <trireme/data/tokenizer.h>
#include <trireme/models/checkpoint_weights.h>
#include <trireme/models/cnn.h>
#include <trireme/train/registry.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <set>

namespace trireme::train {
namespace {

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

} // namespace

Task language_task(const ModelContext& context) {
  const auto& [run, datasets, ranks] = context;
  Task task;
  config::ModelConfig model = run.model;
  if (model.shape().vocab_size == 0) { // "the tokenizer's"
    model.set_vocab_size(datasets.tokenizer->vocab_size());
  }
  const models::LanguageOptions options = model.language();
  const models::TransformerShape shape = model.shape();
  task.tokens_per_sample = shape.sequence_length;
  task.loss_divisor = datasets.bytes_per_token.value_or(1);
  task.language_options = options;
  task.description = concat(shape.is_gated() ? "Llama, " : "GPT, ", shape.layers, " layers, hidden ", shape.hidden,
                            ", ", shape.heads, " heads, ", shape.sequence_length, " tokens");
  task.loss_unit = datasets.bytes_per_token ? "nats/byte" : "nats/token";
  if (run.builds_layers()) {
    task.pipeline = std::make_shared<pipeline::PipelineModule>(models::language_layers(options, ranks),
                                                               models::language_loss(options, ranks), run.pipeline);
    task.pipeline->set_sample_inputs(sample_inputs(datasets));
    return task;
  }
  task.language = models::LanguageModel(options, ranks);
  task.model = task.language.module();
  task.loss = [language = task.language](const data::Batch& batch) {
    return language.loss(batch.input(), batch.target());
  };
  return task;
}

Task cnn_task(const ModelContext& context) {
  const config::RunConfig& run = context.run;
  Task task;
  task.description = "CNN";
  task.loss_unit = "nats";
  models::Cnn cnn(run.model.cnn);
  if (!run.model.cnn.init_from.empty()) {
    load_weights(cnn, run.model.cnn.init_from);
  }
  task.model = cnn.ptr();
  task.loss = [cnn](const data::Batch& batch) mutable { return cnn->loss(batch.input(), batch.target()); };
  task.count_right = [cnn](const data::Batch& batch) mutable {
    const at::Tensor chosen = cnn->forward(batch.input().narrow(0, 0, batch.samples)).argmax(1);
    return chosen.eq(batch.target().narrow(0, 0, batch.samples)).sum();
  };
  return task;
}

pipeline::Tensors sample_inputs(const data::Datasets& datasets) {
  const std::vector<int64_t> one = {0};
  return datasets.train ? datasets.train->get(one).inputs : pipeline::Tensors();
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

} // namespace trireme::train
