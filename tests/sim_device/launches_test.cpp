// How many kernels a layer launches forward and backward: each costs a GPU some microseconds, whatever its work.
#include "child.h"

#include <trireme/device/move.h>
#include <trireme/models/language_model.h>

#include <ATen/ATen.h>

#include <map>

namespace trireme::sim {
namespace {

using Counts = std::map<std::string, int64_t>;

/// Of a forward and backward in bf16.
Counts count_step(const models::LanguageOptions& options) {
  torch::manual_seed(1);
  const models::LanguageModel model(options);
  model.module()->to(at::kBFloat16);
  device::move(*model.module(), device());
  const at::Tensor tokens = (torch::arange(2 * 16) % 40).view({2, 16}).to(device());
  const size_t before = spans().size();
  model.loss(tokens, tokens).backward();
  Counts counts;
  const std::vector<Span> all = spans();
  for (size_t i = before; i < all.size(); ++i) {
    ++counts[all[i].kernel];
    ++counts["all"];
  }
  return counts;
}

models::LanguageOptions gpt_of(int64_t layers) {
  models::GptOptions options;
  options.layers = layers;
  options.hidden = 32;
  options.heads = 4;
  options.sequence_length = 16;
  options.vocab_size = 40;
  return options;
}

models::LanguageOptions llama_of(int64_t layers) {
  models::LlamaOptions options;
  options.layers = layers;
  options.hidden = 32;
  options.heads = 4;
  options.kv_heads = 2;
  options.intermediate = 48;
  options.sequence_length = 16;
  options.vocab_size = 40;
  return options;
}

/// What each layer beyond the second adds.
Counts of_a_layer(const std::function<models::LanguageOptions(int64_t)>& options) {
  Counts two = count_step(options(2)), four = count_step(options(4));
  for (auto& [name, count] : four) {
    count = (count - two[name]) / 2;
  }
  return four;
}

// Most of the rest is attention, for which this device has no kernel as CUDA has.
TEST(SimDeviceLaunches, APassOfALayerIsOneKernel) {
  in_a_child([] {
    keep_spans(true);
    const int64_t gpt_before = of_a_layer(gpt_of)["all"], llama_before = of_a_layer(llama_of)["all"];
    use_cpu_row_kernels();
    Counts gpt = of_a_layer(gpt_of), llama = of_a_layer(llama_of);
    for (const char* const name : {"layer_norm", "layer_norm_backward"}) {
      EXPECT_EQ(gpt[name], 2) << name;
    }
    for (const char* const name : {"gelu", "gelu_backward", "add_bias", "column_sum"}) {
      EXPECT_EQ(gpt[name], 1) << name;
    }
    for (const char* const name : {"rms_norm", "rms_norm_backward"}) {
      EXPECT_EQ(llama[name], 2) << name;
    }
    for (const char* const name : {"gated_silu", "gated_silu_backward"}) {
      EXPECT_EQ(llama[name], 1) << name;
    }
    EXPECT_EQ(llama["rotary"], 4) << "queries and keys, forward and backward";
    EXPECT_LT(gpt["all"], gpt_before);
    EXPECT_LT(llama["all"], llama_before * 3 / 4);
    EXPECT_LE(gpt["all"], 62);
    EXPECT_LE(llama["all"], 180);
  });
}

} // namespace
} // namespace trireme::sim
