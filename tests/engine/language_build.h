#pragma once

#include "split_run.h"

#include <trireme/models/language_model.h>

namespace trireme::engine {

/// A gpt or llama with the mean loss of its tokens, also of packed documents. `change`: of the rest of the options.
inline SplitBuild language_build(const models::LanguageOptions& shape,
                                 const std::function<void(InitializeOptions&)>& change = nullptr) {
  return [=](const SplitLayout& layout, InitializeOptions& options) {
    const models::ModelRanks ranks = layout.model_ranks(*options.mesh);
    if (layout.pipe > 1) {
      options.pipeline = std::make_shared<pipeline::PipelineModule>(
          models::language_layers(shape, ranks), models::language_loss(shape, ranks), layout.pipeline_options());
    } else {
      const models::LanguageModel model(shape, ranks);
      options.model = model.module();
      options.loss = [model](const data::Batch& batch) {
        return model.loss(batch.input(), batch.target(), batch.inputs.size() > 1 ? batch.inputs[1] : at::Tensor());
      };
    }
    if (change) {
      change(options);
    }
  };
}

} // namespace trireme::engine
