#include <trireme/train/task.h>

#include <trireme/base/error.h>
#include <trireme/data/masked_tokens.h>
#include <trireme/data/tokenizer.h>
#include <trireme/models/alexnet_layers.h>
#include <trireme/models/bert_layers.h>
#include <trireme/models/checkpoint_weights.h>
#include <trireme/models/cnn.h>
#include <trireme/train/freeze.h>
#include <trireme/train/registry.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <set>
#include <vector>

namespace trireme::train {
namespace {

void load_weights(models::Cnn& cnn, const std::filesystem::path& path) {
  std::set<std::string> names;
  for (const auto& item : cnn->named_parameters()) {
    names.insert(item.key());
  }
  const models::FillParameter fill = models::values_in(path, std::move(names));
  for (const auto& item : cnn->named_parameters()) {
    fill(item.key(), item.value());
  }
}

void check_for_alexnet(const models::AlexNetOptions& options, const std::vector<int64_t>& image, const char* images) {
  if (image.at(0) != options.channels) {
    throw InputError("train",
                     concat("the ", images, " have ", image.at(0), " channels, the model takes ", options.channels),
                     concat("Set model.channels to ", image.at(0), '.'));
  }
  if (options.resize == 0 && std::min(image.at(1), image.at(2)) < models::AlexNetOptions::kSmallestSide) {
    throw InputError("train",
                     concat("the ", images, " are ", image.at(1), " x ", image.at(2), " pixels, an alexnet needs ",
                            models::AlexNetOptions::kSmallestSide, " x ", models::AlexNetOptions::kSmallestSide),
                     "Set model.resize: 64 for speed, or 224, the network's original size.");
  }
}

void set_layers(Task& task, const ModelContext& context, pipeline::LayerList layers,
                pipeline::PipelineModule::Loss loss) {
  task.pipeline = std::make_shared<pipeline::PipelineModule>(frozen(context.run.training.freeze, std::move(layers)),
                                                             std::move(loss), context.run.pipeline);
  task.pipeline->set_sample_inputs(sample_inputs(context.data));
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
    set_layers(task, context, models::language_layers(options, ranks), models::language_loss(options, ranks));
    return task;
  }
  task.language = models::LanguageModel(options, ranks);
  task.model = task.language.module();
  task.loss = [language = task.language](const data::Batch& batch) {
    return language.loss(batch.input(), batch.target(), batch.inputs.size() > 1 ? batch.inputs[1] : at::Tensor());
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

Task bert_task(const ModelContext& context) {
  static_assert(data::MaskedTokens::kIgnored == models::kIgnoredTarget);
  const auto& [run, datasets, ranks] = context;
  models::BertOptions options = run.model.bert;
  if (options.vocab_size == 0 && datasets.tokenizer == nullptr) {
    throw InputError("train", "the size of the vocabulary is unknown: there is no tokenizer to ask",
                     "Set model.vocab_size.");
  }
  if (options.vocab_size == 0) { // "the tokenizer's"
    options.vocab_size = datasets.tokenizer->vocab_size();
  }
  const bool classifies = options.head == models::BertOptions::Head::classes;
  Task task;
  task.description = concat("BERT, ", options.layers, " layers, hidden ", options.hidden, ", ", options.heads,
                            " heads, ", run.data.sequence_length, " tokens");
  task.tokens_per_sample = run.data.sequence_length;
  task.loss_unit = classifies ? "nats" : "nats/token";
  if (classifies) {
    task.count_right_of = models::count_right_labels;
  }
  set_layers(task, context, models::bert_layers(options, ranks), models::bert_loss(options, ranks));
  return task;
}

Task alexnet_task(const ModelContext& context) {
  const models::AlexNetOptions& options = context.run.model.alexnet;
  Task task;
  task.description = concat("AlexNet, ", options.classes, " classes");
  task.loss_unit = "nats";
  task.count_right_of = models::count_right_labels;
  set_layers(task, context, models::alexnet_layers(options), models::label_loss);
  return task;
}

pipeline::Tensors sample_inputs(const data::Datasets& datasets) {
  const std::vector<int64_t> one = {0};
  return datasets.train ? datasets.train->get(one).inputs : pipeline::Tensors();
}

void check_samples(const config::RunConfig& run, const data::Datasets& datasets) {
  using Kind = config::ModelConfig::Kind;
  const bool is_cnn = run.model.kind == Kind::cnn;
  if (!is_cnn && run.model.kind != Kind::alexnet) {
    return;
  }
  const std::vector<int64_t> one = {0};
  for (const auto& [set, images] :
       {std::pair(datasets.train, "images"), std::pair(datasets.validation, "validation images")}) {
    if (!set) {
      continue;
    }
    const at::Tensor image = set->get(one).input();
    const auto there = image.sizes().slice(1).vec();
    if (!is_cnn) {
      check_for_alexnet(run.model.alexnet, there, images);
      continue;
    }
    const models::CnnOptions& cnn = run.model.cnn;
    if (const std::vector<int64_t> wanted = {cnn.channels, cnn.side, cnn.side}; there != wanted) {
      throw InputError("train",
                       concat("the ", images, " are ", at::IntArrayRef(there),
                              " (channels, height, width), the model takes ", at::IntArrayRef(wanted)),
                       "Set model.channels and model.side to those of the images.");
    }
  }
}

} // namespace trireme::train
