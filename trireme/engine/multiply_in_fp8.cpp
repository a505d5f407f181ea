#include <trireme/engine/multiply_in_fp8.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/fp8/linear.h>
#include <trireme/fp8/products.h>
#include <trireme/parallel/tensor/layers.h>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <memory>

namespace trireme::engine {
namespace {

// The names of tensors in checkpoints, by TensorImpl.
std::map<const void*, std::string> checkpoint_names(const Parts& parts) {
  std::map<const void*, std::string> names;
  for (const auto& item : parts.model.module->named_parameters()) {
    names[item.value().unsafeGetTensorImpl()] =
        parts.model.layers ? parts.model.layers->saved_name(item.key()) : item.key();
  }
  return names;
}

// `module` and what it consists of.
std::vector<std::shared_ptr<torch::nn::Module>> all_modules(const Parts& parts) {
  std::vector<std::shared_ptr<torch::nn::Module>> found;
  const auto add = [&](const std::shared_ptr<torch::nn::Module>& module) {
    const auto inside = module->modules(/*include_self=*/false);
    found.push_back(module);
    found.insert(found.end(), inside.begin(), inside.end());
  };
  if (!parts.model.layers) {
    add(parts.model.module);
  } else {
    for (const auto& layer : parts.model.layers->layer_modules()) {
      add(layer);
    }
  }
  return found;
}

void report_fp8(const Parts& parts, int64_t in_fp8, int64_t linears) {
  const fp8::Options& options = parts.settings.precision.fp8;
  if (in_fp8 == 0) {
    throw InputError(
        "engine",
        concat("\"fp8\": none of the model's ", linears, " split linear layers has sizes that are multiples of ",
               fp8::kMultiple, " and a name without what filter_fqns lists"),
        "Leave engine.fp8 out, widen the layers, or build the model of tensor::ColumnParallelLinear and "
        "RowParallelLinear, as gpt, llama and bert are.");
  }
  if (parts.ranks.everyone.rank() == 0) {
    log::info(
        "fp8 \"", fp8::recipe_name(options.recipe), "\": ", in_fp8, " of ", linears, " linear layers multiply in FP8",
        fp8::products(parts.device()).emulated
            ? concat(", emulated on this device (", parts.device(), "): it computes the same, but slower than bf16")
            : "");
  }
}

} // namespace

void multiply_in_fp8(Parts& parts) {
  const bool enabled = parts.settings.precision.fp8.enabled;
  const auto options = std::make_shared<const fp8::Options>(parts.settings.precision.fp8);
  const std::map<const void*, std::string> names = checkpoint_names(parts);
  std::vector<tensor::Fp8Layer*> layers;
  std::vector<int64_t> takes; // of each layer
  for (const auto& module : all_modules(parts)) {
    auto* const layer = dynamic_cast<tensor::Fp8Layer*>(module.get());
    const auto* const linear = dynamic_cast<const torch::nn::LinearImpl*>(module.get());
    if (layer == nullptr || linear == nullptr) {
      continue;
    }
    layer->multiply_in_fp8(nullptr); // an earlier engine of the model may have had it
    const auto name = names.find(linear->weight.unsafeGetTensorImpl());
    const bool filtered = std::ranges::any_of(options->filter_fqns, [&](const std::string& part) {
      return name != names.end() && name->second.find(part) != std::string::npos;
    });
    layers.push_back(layer);
    takes.push_back(!filtered && fp8::fits(linear->weight) ? 1 : 0);
  }
  if (!enabled) {
    return;
  }
  at::Tensor all = torch::tensor(takes, torch::kLong);
  if (!takes.empty()) { // parts of a weight may differ between tensor ranks, whose exchanges must not
    parts.ranks.tensor.all_reduce(all, comm::ReduceOp::min, "linear layers in fp8").wait();
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (all[static_cast<int64_t>(i)].item<int64_t>() != 0) {
      layers[i]->multiply_in_fp8(options);
    }
  }
  at::Tensor counts = torch::tensor({all.sum().item<int64_t>(), static_cast<int64_t>(layers.size())});
  parts.ranks.pipe.all_reduce(counts, comm::ReduceOp::sum, "linear layers in fp8").wait();
  report_fp8(parts, counts[0].item<int64_t>(), counts[1].item<int64_t>());
}

} // namespace trireme::engine
