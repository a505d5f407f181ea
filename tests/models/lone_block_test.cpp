// The block that `trireme plan --calibrate` measures has the parameters of the model's own, or of a tensor rank of it.
#include <trireme/models/llama.h>
#include <trireme/models/lone_block.h>

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <map>
#include <string>
#include <vector>

namespace trireme::models {
namespace {

using Sizes = std::map<std::string, std::vector<int64_t>>;

Sizes sizes_of(const torch::nn::Module& module) {
  Sizes sizes;
  for (const auto& item : module.named_parameters()) {
    sizes[item.key()] = item.value().sizes().vec();
  }
  return sizes;
}

Sizes expected(const TransformerShape& shape, int64_t tensor) {
  using Split = LayerShape::Parameter::Split;
  Sizes sizes;
  for (const LayerShape& layer : layer_shapes(shape)) {
    for (const auto& parameter : layer.parameters) {
      if (layer.kind == LayerShape::Kind::block) {
        std::vector<int64_t>& there = sizes[parameter.name] = parameter.sizes;
        if (parameter.split != Split::none) {
          there[parameter.split == Split::rows ? 0 : 1] /= tensor;
        }
      }
    }
  }
  return sizes;
}

LlamaOptions grouped() {
  LlamaOptions options;
  options.layers = 1;
  options.hidden = 24;
  options.heads = 4;
  options.kv_heads = 2;
  options.head_dim = 10;
  options.intermediate = 28;
  options.sequence_length = 6;
  options.attention_bias = options.mlp_bias = options.qk_norm = true;
  return options;
}

TEST(LoneBlockTest, HasTheParametersOfATensorRank) {
  GptOptions gpt;
  gpt.layers = 1;
  gpt.hidden = 16;
  gpt.heads = 4;
  LlamaOptions plain = grouped();
  plain.kv_heads = plain.head_dim = 0;
  plain.attention_bias = plain.mlp_bias = plain.qk_norm = false;
  plain.attention_output_bias = true;
  for (const TransformerShape& shape : {shape_of(gpt), shape_of(grouped()), shape_of(plain)}) {
    for (const int64_t tensor : {1, 2}) {
      const LoneBlock block = lone_block(shape, tensor);
      EXPECT_EQ(sizes_of(*block.module), expected(shape, tensor));
      const at::Tensor x = torch::randn({3, 6, shape.hidden}).requires_grad_();
      const at::Tensor y = block.forward(x);
      EXPECT_EQ(y.sizes(), x.sizes());
      y.sum().backward();
      EXPECT_TRUE(x.grad().defined());
    }
  }
}

TEST(LoneBlockTest, IsTheModelsBlock) {
  const torch::NoGradGuard no_grad;
  Llama model(grouped());
  const LoneBlock block = lone_block(shape_of(grouped()));
  const auto of_model = model->named_parameters();
  for (auto& item : block.module->named_parameters()) {
    item.value().copy_(of_model["model.layers.0." + item.key()]);
  }
  const at::Tensor tokens = torch::tensor({{3, 1, 4, 1, 5, 9}});
  const at::Tensor x = model->model->embed_tokens->forward(tokens);
  EXPECT_TRUE(model->model->norm->forward(block.forward(x)).equal(model->model->forward(tokens)));
}

} // namespace
} // namespace trireme::models
