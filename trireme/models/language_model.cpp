#include <trireme/models/language_model.h>

#include <trireme/models/gpt.h>
#include <trireme/models/gpt_layers.h>
#include <trireme/models/llama.h>
#include <trireme/models/llama_layers.h>

#include <algorithm>

namespace trireme::models {

template <class Impl>
void LanguageModel::hold(std::shared_ptr<Impl> model) {
  options_ = model->options();
  module_ = model;
  forward_ = [model](const at::Tensor& tokens_BT) { return model->forward(tokens_BT); };
  loss_ = [model](const at::Tensor& tokens_BT, const at::Tensor& targets_BT, const at::Tensor& positions_BT) {
    return model->loss(tokens_BT, targets_BT, positions_BT);
  };
  extend_ = [model](const at::Tensor& tokens_BT, KeyValueCache& cache) { return model->extend(tokens_BT, cache); };
}

LanguageModel::LanguageModel(std::shared_ptr<GptImpl> model) {
  hold(std::move(model));
}

LanguageModel::LanguageModel(std::shared_ptr<LlamaImpl> model) {
  hold(std::move(model));
}

LanguageModel::LanguageModel(const LanguageOptions& options, const ModelRanks& ranks) {
  if (const auto* const llama = std::get_if<LlamaOptions>(&options)) {
    hold(Llama(*llama, ranks).ptr());
  } else {
    hold(Gpt(std::get<GptOptions>(options), ranks).ptr());
  }
}

int64_t LanguageModel::most_tokens() const {
  const auto* const llama = std::get_if<LlamaOptions>(&options_);
  if (llama == nullptr) {
    return shape().sequence_length;
  }
  const int64_t trained = std::max(llama->sequence_length, llama->max_positions);
  const bool grows = llama->rope_scaling.kind == RopeScaling::Kind::dynamic;
  return grows ? static_cast<int64_t>(static_cast<double>(trained) * llama->rope_scaling.factor) : trained;
}

pipeline::LayerList language_layers(const LanguageOptions& options, const ModelRanks& ranks) {
  const auto* const llama = std::get_if<LlamaOptions>(&options);
  return llama != nullptr ? llama_layers(*llama, ranks) : gpt_layers(std::get<GptOptions>(options), ranks);
}

pipeline::Loss language_loss(const LanguageOptions& options, const ModelRanks& ranks) {
  const auto* const llama = std::get_if<LlamaOptions>(&options);
  return llama != nullptr ? llama_loss(*llama, ranks) : gpt_loss(std::get<GptOptions>(options), ranks);
}

} // namespace trireme::models
