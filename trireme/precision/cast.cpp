#include <trireme/precision/cast.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/utils.h>

#include <map>
#include <tuple>

namespace trireme::precision {
namespace {

// Storage, offset, sizes and strides: tensors with equal keys view the same numbers.
using Window = std::tuple<const void*, int64_t, std::vector<int64_t>, std::vector<int64_t>>;
using Done = std::map<Window, at::Tensor>;

Window window(const at::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(), tensor.sizes().vec(),
          tensor.strides().vec()};
}

void cast_in_place(at::Tensor& tensor, at::ScalarType type, Done& done) {
  if (!tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == type) {
    return;
  }
  const auto [place, is_new] = done.try_emplace(window(tensor));
  if (is_new) {
    place->second = tensor.detach().to(type);
  }
  tensor.mutable_grad() = at::Tensor();
  tensor.set_data(place->second);
}

bool is_norm(const torch::nn::Module& module) {
  namespace nn = torch::nn;
  return module.as<nn::LayerNormImpl>() || module.as<nn::GroupNormImpl>() || module.as<nn::BatchNorm1dImpl>() ||
         module.as<nn::BatchNorm2dImpl>() || module.as<nn::BatchNorm3dImpl>() || module.as<nn::InstanceNorm1dImpl>() ||
         module.as<nn::InstanceNorm2dImpl>() || module.as<nn::InstanceNorm3dImpl>();
}

void cast_tree(torch::nn::Module& module, at::ScalarType type, const CastOptions& options, Done& done) {
  if (!options.keep_norms || !is_norm(module)) {
    for (at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
      cast_in_place(parameter, type, done);
    }
    if (options.buffers) {
      for (at::Tensor& buffer : module.buffers(/*recurse=*/false)) {
        cast_in_place(buffer, type, done);
      }
    }
  }
  for (const auto& child : module.children()) {
    cast_tree(*child, type, options, done);
  }
}

} // namespace

at::ScalarType scalar_type(Type type) {
  return type == Type::fp32 ? at::kFloat : type == Type::bf16 ? at::kBFloat16 : at::kHalf;
}

double largest_power(at::ScalarType type) {
  return type == at::kHalf ? 0x1p15 : 0x1p127;
}

void cast_module(torch::nn::Module& module, Type type, const CastOptions& options) {
  const torch::NoGradGuard no_grad;
  Done done;
  cast_tree(module, scalar_type(type), options, done);
}

at::Tensor cast_floating(const at::Tensor& tensor, Type type) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(scalar_type(type)) : tensor;
}

std::vector<at::Tensor> cast_floating(std::vector<at::Tensor> tensors, Type type) {
  for (at::Tensor& tensor : tensors) {
    tensor = cast_floating(tensor, type);
  }
  return tensors;
}

} // namespace trireme::precision
