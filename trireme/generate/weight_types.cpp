#include <trireme/generate/weight_types.h>

#include <trireme/base/error.h>
#include <trireme/fused/fused.h>
#include <trireme/fused/int8.h>
#include <trireme/parallel/tensor/layers.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

namespace trireme::generate {
namespace {

/// The module's weight, if it is of those that int8 replaces; else nullptr.
at::Tensor* replaced_weight(torch::nn::Module& module) {
  if (auto* const linear = dynamic_cast<torch::nn::LinearImpl*>(&module)) {
    return &linear->weight;
  }
  if (auto* const embedding = dynamic_cast<tensor::VocabParallelEmbeddingImpl*>(&module)) {
    return &embedding->weight;
  }
  return nullptr;
}

} // namespace

void convert_weights(const models::LanguageModel& model, at::ScalarType type, WeightType weights) {
  if (weights == WeightType::same) {
    model.module()->to(type);
    return;
  }
  if (!fused::has_passes(at::empty({0}, type))) {
    throw InputError("generate", "int8 weights need a processor with AVX2",
                     "Leave out --weights int8 (and TRIREME_SIMD=scalar, if it is set).");
  }
  for (const auto& module : model.module()->modules()) {
    at::Tensor* const replaced = replaced_weight(*module);
    for (auto& item : module->named_parameters(/*recurse=*/false)) {
      at::Tensor& parameter = item.value();
      parameter.set_requires_grad(false);
      const bool packs = replaced != nullptr && parameter.is_same(*replaced);
      parameter.set_data(packs ? fused::pack_int8(parameter) : parameter.detach().to(type));
    }
  }
}

} // namespace trireme::generate
