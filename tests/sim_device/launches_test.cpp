// How many kernels a layer launches forward and backward: each costs a GPU some microseconds, whatever its work.
#include "child.h"

#include <trireme/device/move.h>
#include <trireme/models/language_model.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <variant>

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

/// The loss and the gradients by name of a model with a vocabulary that a GPU pads.
std::map<std::string, at::Tensor> loss_and_gradients(models::LanguageOptions options, bool ties, at::Device on) {
  std::visit([](auto& of_family) { of_family.sequence_length = 128, of_family.vocab_size = 4100; }, options);
  std::visit([&](auto& of_family) { of_family.tie_embeddings = ties; }, options);
  torch::manual_seed(1);
  const models::LanguageModel model(options);
  if (!on.is_cpu()) {
    device::move(*model.module(), on);
  }
  const at::Tensor tokens = (torch::arange(2 * 128) * 31 % 4100).view({2, 128}).to(on);
  const at::Tensor loss = model.loss(tokens, tokens);
  loss.backward();
  std::map<std::string, at::Tensor> all = {{"loss", loss.detach().cpu()}};
  for (const auto& parameter : model.module()->named_parameters()) {
    all[parameter.key()] = parameter.value().grad().cpu();
  }
  EXPECT_EQ(model.forward(tokens).size(2), 4100);
  return all;
}

TEST(SimDeviceLaunches, APaddedVocabularyHasTheSameLoss) {
  in_a_child([] {
    for (const bool kernels : {false, true}) {
      if (kernels) {
        use_cpu_row_kernels();
      }
      keep_spans(true);
      for (const auto& options : {gpt_of(1), llama_of(1)}) {
        for (const bool ties : {false, true}) {
          const auto expected = loss_and_gradients(options, ties, at::kCPU);
          const auto found = loss_and_gradients(options, ties, device());
          ASSERT_EQ(found.size(), expected.size());
          for (const auto& [name, gradient] : expected) {
            ASSERT_EQ(found.at(name).sizes(), gradient.sizes()) << name;
            EXPECT_LE((found.at(name) - gradient).abs().max().item<double>(),
                      2e-5 * gradient.abs().max().item<double>())
                << name;
          }
        }
      }
      const std::vector<Span> all = spans();
      EXPECT_EQ(std::ranges::any_of(all, [](const Span& span) { return span.kernel == "cross_entropy_backward"; }),
                kernels);
    }
  });
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
