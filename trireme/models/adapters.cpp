#include <trireme/models/adapters.h>

#include <trireme/models/initialize.h>
#include <trireme/parallel/tensor/layers.h>

#include <torch/nn/module.h>

#include <cmath>

namespace trireme::models {

void add_adapters(torch::nn::Module& module, const std::string& name, const LoraOptions& lora) {
  if (!lora.on()) {
    return;
  }
  const tensor::AdapterOptions options{lora.rank, lora.scale(), lora.dropout};
  for (const auto& item : module.named_modules(name, /*include_self=*/false)) {
    if (!lora.layers.contains(item.key())) {
      continue;
    }
    if (auto* const column = item.value()->as<tensor::ColumnParallelLinear>()) {
      column->adapt(options);
    } else if (auto* const row = item.value()->as<tensor::RowParallelLinear>()) {
      row->adapt(options);
    }
  }
}

// torch.nn.Linear's kaiming_uniform_(a=sqrt(5)), as PEFT's.
void fill_adapter(const std::string& name, const at::Tensor& parameter, int64_t seed) {
  if (name.ends_with("lora_A.weight")) {
    fill_uniform(parameter, 1 / std::sqrt(static_cast<double>(parameter.size(1))), seed, name);
  } else {
    fill(parameter, 0);
  }
}

} // namespace trireme::models
