#include <trireme/generate/weight_types.h>

#include <trireme/base/error.h>
#include <trireme/fused/fused.h>
#include <trireme/fused/int8.h>
#include <trireme/kernels/fused_kernels.h>
#include <trireme/parallel/tensor/layers.h>
#include <trireme/parallel/tensor/split_module.h>

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

// Ranks that split the inputs of a layer use the scales of the full weight.
at::Tensor pack(const at::Tensor& weight, const bucket::Placement& placed, const comm::Group& ranks) {
  constexpr int64_t kGroup = kernels::kInt8Group;
  if (placed.global_shape.empty() || placed.global_shape[1] == weight.size(1)) {
    return fused::pack_int8(weight);
  }
  if (ranks.size() == 1) {
    throw InputError("generate", "int8 weights of a model that ranks split need these ranks",
                     "Give them to convert_weights().");
  }
  const int64_t begin = placed.box_offset[1];
  const at::Tensor padded = at::constant_pad_nd(weight.detach(), {begin % kGroup, 0});
  const at::Tensor own = fused::int8_scales(padded);
  const at::Tensor all = at::zeros({weight.size(0), (placed.global_shape[1] + kGroup - 1) / kGroup});
  const at::Tensor here = all.narrow(1, begin / kGroup, own.size(1));
  here.copy_(own);
  ranks.all_reduce(all, comm::ReduceOp::max, "scales of int8 weights").wait();
  return fused::pack_int8(padded, here);
}

} // namespace

void convert_weights(const models::LanguageModel& model, at::ScalarType type, WeightType weights,
                     const comm::Group& ranks) {
  if (weights == WeightType::same) {
    model.module()->to(type);
    return;
  }
  if (!fused::has_passes(at::empty({0}, type))) {
    throw InputError("generate", "int8 weights need a processor with AVX2",
                     "Leave out --weights int8 (and TRIREME_SIMD=scalar, if it is set).");
  }
  const tensor::Placements split = tensor::placements_of(*model.module());
  for (const auto& module : model.module()->modules()) {
    at::Tensor* const replaced = replaced_weight(*module);
    for (auto& item : module->named_parameters(/*recurse=*/false)) {
      at::Tensor& parameter = item.value();
      parameter.set_requires_grad(false);
      const bool packs = replaced != nullptr && parameter.is_same(*replaced);
      const auto placed = split.find(parameter.unsafeGetTensorImpl());
      parameter.set_data(packs ? pack(parameter, placed == split.end() ? bucket::Placement() : placed->second, ranks)
                               : parameter.detach().to(type));
    }
  }
}

} // namespace trireme::generate
