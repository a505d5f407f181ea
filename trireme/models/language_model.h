#pragma once

#include <trireme/models/key_value_cache.h>
#include <trireme/models/options.h>
#include <trireme/models/ranks.h>
#include <trireme/parallel/pipeline/module.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace trireme::models {

class GptImpl;
class LlamaImpl;

/// A Gpt or Llama in one piece, for code that does not ask which. Null by default.
class LanguageModel {
 public:
  LanguageModel() = default;
  /// Errors: as Gpt's and Llama's constructors.
  explicit LanguageModel(const LanguageOptions& options, const ModelRanks& ranks = {});
  LanguageModel(std::shared_ptr<GptImpl> model);
  LanguageModel(std::shared_ptr<LlamaImpl> model);

  explicit operator bool() const { return module_ != nullptr; }
  /// [B, T] int64 tokens -> [B, T, V] logits.
  at::Tensor forward(const at::Tensor& tokens_BT) const { return forward_(tokens_BT); }
  /// Mean cross-entropy in nats per token against targets [B, T].
  /// positions [B, T], if given, are those of packed documents (documents.h).
  at::Tensor loss(const at::Tensor& tokens_BT, const at::Tensor& targets_BT,
                  const at::Tensor& positions_BT = {}) const {
    return loss_(tokens_BT, targets_BT, positions_BT);
  }
  /// Logits [B, V] of what follows each row, of which the cache is told first: cache.begin() for prompts [B, T],
  /// cache.next() for one more token a row [B, 1]. For generation, without gradients; not for ranks that split tokens.
  at::Tensor extend(const at::Tensor& tokens_BT, KeyValueCache& cache) const { return extend_(tokens_BT, cache); }
  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  const LanguageOptions& options() const { return options_; }
  TransformerShape shape() const { return shape_of(options_); }
  /// The longest text that it reads: its positions, times the factor of a dynamic scaling.
  int64_t most_tokens() const;

 private:
  template <class Impl>
  void hold(std::shared_ptr<Impl> model);

  LanguageOptions options_;
  std::shared_ptr<torch::nn::Module> module_;
  std::function<at::Tensor(const at::Tensor&)> forward_;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)> loss_;
  std::function<at::Tensor(const at::Tensor&, KeyValueCache&)> extend_;
};

/// The same as a list of layers, with the loss of its outputs among these ranks.
pipeline::LayerList language_layers(const LanguageOptions& options, const ModelRanks& ranks = {});
pipeline::Loss language_loss(const LanguageOptions& options, const ModelRanks& ranks);

} // namespace trireme::models
