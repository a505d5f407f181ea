#include <trireme/generate/merge.h>

#include <trireme/base/error.h>

#include <ATen/ops/empty.h>
#include <torch/utils.h>

#include <string_view>

namespace trireme::generate {

void merge_adapter(const std::string& name, const at::Tensor& weight, const models::LoraOptions& lora,
                   const ReadParameter& read) {
  constexpr std::string_view kWeight = ".weight";
  const std::string layer = name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : "";
  if (!lora.layers.contains(layer)) {
    return;
  }
  const torch::NoGradGuard no_grad;
  const at::Tensor a = at::empty({lora.rank, weight.size(1)}, weight.options());
  const at::Tensor b = at::empty({weight.size(0), lora.rank}, weight.options());
  read(concat(layer, ".lora_A.weight"), a);
  read(concat(layer, ".lora_B.weight"), b);
  weight.detach().addmm_(b, a, 1, lora.scale());
}

} // namespace trireme::generate
