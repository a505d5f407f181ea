#pragma once

#include <trireme/models/model_values.h>
#include <trireme/models/options.h>
#include <trireme/models/ranks.h>
#include <trireme/parallel/pipeline/module.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

// What the layer lists of language models share.
namespace trireme::models {

/// A layer whose second input, if there is one, is the positions of packed documents (documents.h). It passes them on,
/// unless it does not take them: then they end here.
template <class M>
class DocumentLayer : public pipeline::LayerSpec<M> {
 public:
  template <class... A>
  explicit DocumentLayer(A... arguments) : pipeline::LayerSpec<M>(std::move(arguments)...) {
    this->change().bind = [type = this->type()](const std::shared_ptr<torch::nn::Module>& module) -> pipeline::Forward {
      return [impl = pipeline::Layer::cast<typename M::ContainedType>(module, type)](const pipeline::Tensors& inputs) {
        return run(*impl, inputs);
      };
    };
  }

 private:
  static pipeline::Tensors run(typename M::ContainedType& module, const pipeline::Tensors& inputs) {
    if constexpr (requires { module.forward(inputs[0], inputs[0]); }) {
      if (inputs.size() > 1) {
        return {module.forward(inputs[0], inputs[1]), inputs[1]};
      }
    }
    return {module.forward(inputs.at(0))};
  }
};

/// The layers of `shapes` for a pipeline, with their names and initial values. Embedding and head are made here: the
/// weight of `shapes.front()` is [vocabulary, hidden]; a tied head is a TiedLayerSpec on it. `make` makes the others,
/// in order. Inputs are tokens [B, T] and, for packed documents, their positions [B, T].
pipeline::LayerList language_layers(const std::vector<LayerShape>& shapes, const ModelRanks& ranks, bool tie_embeddings,
                                    const std::function<pipeline::Layer(const LayerShape& part)>& make,
                                    const std::shared_ptr<const ModelValues>& values);

/// Mean cross-entropy of logits [B, T, V] against targets [B, T], in nats per token.
at::Tensor token_loss(const pipeline::Tensors& outputs, const pipeline::Tensors& targets);
/// The same for the outputs of language_layers() among these ranks. In training the head and the loss are computed in
/// one where logits are many: loss_in_chunks() (language_head.h).
pipeline::Loss language_loss(int64_t vocabulary, const ModelRanks& ranks);

} // namespace trireme::models
