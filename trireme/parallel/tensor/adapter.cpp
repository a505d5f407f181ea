#include <trireme/parallel/tensor/adapter.h>

#include <trireme/base/error.h>
#include <trireme/fused/dropout.h>
#include <trireme/parallel/tensor/linear.h>
#include <trireme/parallel/tensor/own_random.h>

#include <ATen/ATen.h>
#include <torch/nn/init.h>
#include <torch/utils.h>

#include <cmath>
#include <utility>

namespace trireme::tensor {
namespace {

// torch.nn.Linear's initial values, drawn for the full matrix.
void fill_kaiming(AdapterMatrixImpl& a) {
  const torch::NoGradGuard no_grad;
  const auto placements = a.placements();
  if (placements.empty()) {
    torch::nn::init::kaiming_uniform_(a.weight, std::sqrt(5.0));
    return;
  }
  const bucket::Placement& placed = placements.at("weight");
  const at::Tensor whole = at::empty(placed.global_shape, a.weight.options());
  torch::nn::init::kaiming_uniform_(whole, std::sqrt(5.0));
  a.weight.copy_(box_of(whole, placed, a.weight.sizes()));
}

} // namespace

AdapterMatrixImpl::AdapterMatrixImpl(at::IntArrayRef sizes, bucket::Placement placement)
    : weight(register_parameter("weight", torch::zeros(sizes))), placement_(std::move(placement)) {}

std::map<std::string, bucket::Placement> AdapterMatrixImpl::placements() const {
  if (placement_.global_shape.empty()) {
    return {};
  }
  return {{"weight", placement_}};
}

void Adapter::add(torch::nn::Module& layer, const AdapterOptions& options, AdapterMatrix a, AdapterMatrix b) {
  if (options.rank < 1 || !(options.dropout >= 0 && options.dropout < 1)) {
    throw InputError("lora",
                     concat("an adapter of rank ", options.rank, " with dropout ", options.dropout, " cannot be made"),
                     "Choose a rank of at least 1, and a dropout from 0 to below 1.");
  }
  options_ = options;
  lora_A = layer.register_module("lora_A", std::move(a));
  lora_B = layer.register_module("lora_B", std::move(b));
  fill_kaiming(*lora_A);
}

at::Tensor Adapter::reduce(const at::Tensor& x, const Ranks& ranks, bool own_noise, bool training) const {
  if (options_.dropout == 0 || !training) {
    return whole_linear(x, lora_A->weight);
  }
  const OwnRandom own(ranks.group.rank(), own_noise ? ranks.group.size() : 1, x.device());
  return whole_linear(fused::dropout(x, options_.dropout), lora_A->weight);
}

at::Tensor Adapter::expand(const at::Tensor& y, const at::Tensor& reduced) const {
  return y + whole_linear(reduced * options_.scale, lora_B->weight);
}

} // namespace trireme::tensor
